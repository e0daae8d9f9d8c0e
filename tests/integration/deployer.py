"""An account that runs the engine with a role of exactly what a stack is said to take."""

from __future__ import annotations

import json
from typing import Any

import requests

from infra.deployer import Permissions
from tpustack.cloud.local import LocalCloudCommand

PROJECT = "projects/tpu-stack-local"
_EMAIL = "deployer@tpu-stack-local.iam.gserviceaccount.com"
_MEMBER = f"serviceAccount:{_EMAIL}"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# What has to be enabled before anybody but the project's owner can do anything.
_APIS = ("iam.googleapis.com", "iamcredentials.googleapis.com")


class Deployer:
    """The account, made and watched by the project's owner."""

    def __init__(self, owner: requests.Session, cloud: LocalCloudCommand) -> None:
        self._owner, self._cloud = owner, cloud

    def grant(self, permissions: Permissions) -> None:
        """Make the account with a role of these permissions; owners do no more than this."""
        services = f"serviceusage.googleapis.com/v1/{PROJECT}/services:batchEnable"
        self._post(services, {"serviceIds": list(_APIS)})
        iam = f"iam.googleapis.com/v1/{PROJECT}"
        self._post(f"{iam}/serviceAccounts", {"accountId": "deployer"})
        role = {"title": "Deployer", "includedPermissions": permissions.of_project()}
        name = self._post(f"{iam}/roles", {"roleId": "deployer", "role": role})["name"]
        self._bind(f"cloudresourcemanager.googleapis.com/v1/{PROJECT}", name)
        if permissions.billing_role:
            info = f"https://cloudbilling.googleapis.com/v1/{PROJECT}/billingInfo"
            account = self._owner.get(info, timeout=30).json()["billingAccountName"]
            self._bind(f"cloudbilling.googleapis.com/v1/{account}", permissions.billing_role)

    def token(self) -> str:
        """A token of the account, which the owner may ask for."""
        url = f"iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{_EMAIL}"
        return str(self._post(f"{url}:generateAccessToken", {"scope": [_SCOPE]})["accessToken"])

    def asked(self) -> list[str]:
        """The permissions that its calls asked for since the last time, and got.

        The calls that find out whether an API answers need no permission to tell.
        """
        said = json.loads(self._cloud.run("permissions", _MEMBER, "--json", "--clear"))[_MEMBER]
        return sorted(name for name, granted in said.items() if granted)

    def _bind(self, resource: str, role: str) -> None:
        read = self._post if "resourcemanager" in resource else self._get
        policy = read(f"{resource}:getIamPolicy")
        policy["bindings"].append({"role": role, "members": [_MEMBER]})
        self._post(f"{resource}:setIamPolicy", {"policy": policy})

    def _get(self, url: str) -> dict[str, Any]:
        return self._read(self._owner.get(f"https://{url}", timeout=30))

    def _post(self, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._read(self._owner.post(f"https://{url}", json=body or {}, timeout=30))

    def _read(self, answer: requests.Response) -> dict[str, Any]:
        assert answer.ok, answer.text
        read: dict[str, Any] = answer.json()
        return read
