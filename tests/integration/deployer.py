"""An account that runs the engine with a role of exactly what a stack is said to take."""

from __future__ import annotations

import json
from typing import Any

import requests

from localcloud.testing import Session
from tpu_bootstrap.settings import UNLIMITED
from tpu_infra.deployer import OBJECTS_ROLE, Permissions
from tpustack.local import LocalCloudCommand

PROJECT = "projects/tpu-stack-local"
_EMAIL = "deployer@tpu-stack-local.iam.gserviceaccount.com"
_MEMBER = f"serviceAccount:{_EMAIL}"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
# What has to be enabled before anybody but the project's owner can do anything.
_APIS = ("iam.googleapis.com", "iamcredentials.googleapis.com")


_ONLY = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly({})"


def _roles(permissions: Permissions) -> dict[str, tuple[list[str], str]]:
    """The permissions that grant, each bound to the stack's roles if all are known; the others."""
    every = permissions.of_project()
    # A stack that makes a role grants that, too.
    own_role = "iam.roles.create" in every
    granting = [name for name in every if name.endswith(".setIamPolicy")]
    bound = [] if own_role else [name for name in granting if name not in UNLIMITED]
    granters = {
        f"granter{number}": ([name], _ONLY.format(list(permissions.grants[name])))
        for number, name in enumerate(bound)
    }
    return {"deployer": ([name for name in every if name not in bound], ""), **granters}


class Deployer:
    """The account, made and watched by the project's owner."""

    def __init__(self, owner: requests.Session, cloud: LocalCloudCommand) -> None:
        self._owner, self._cloud = owner, cloud

    def grant(self, permissions: Permissions, objects: str = "") -> None:
        """Make the account with roles of these permissions; owners do no more than this.

        Args:
            permissions: what the stack takes.
            objects: the condition under which it may replace and delete objects.

        As `tpustack bootstrap` does, it binds the right to grant to the stack's own roles.
        """
        services = f"serviceusage.googleapis.com/v1/{PROJECT}/services:batchEnable"
        self._post(services, {"serviceIds": list(_APIS)})
        iam = f"iam.googleapis.com/v1/{PROJECT}"
        self._post(f"{iam}/serviceAccounts", {"accountId": "deployer"})
        for role_id, (included, only) in _roles(permissions).items():
            role = {"title": "Deployer", "includedPermissions": included}
            name = self._post(f"{iam}/roles", {"roleId": role_id, "role": role})["name"]
            self._bind(f"cloudresourcemanager.googleapis.com/v1/{PROJECT}", name, only)
        if objects:
            self._bind(f"cloudresourcemanager.googleapis.com/v1/{PROJECT}", OBJECTS_ROLE, objects)
        if permissions.billing_role:
            info = f"https://cloudbilling.googleapis.com/v1/{PROJECT}/billingInfo"
            account = self._owner.get(info, timeout=30).json()["billingAccountName"]
            self._bind(f"cloudbilling.googleapis.com/v1/{account}", permissions.billing_role)

    def token(self) -> str:
        """A token of the account, which the owner may ask for."""
        url = f"iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{_EMAIL}"
        return str(self._post(f"{url}:generateAccessToken", {"scope": [_SCOPE]})["accessToken"])

    def session(self, client: Session) -> Session:
        """Make a client of the local cloud's APIs the account's."""
        client.headers["Authorization"] = f"Bearer {self.token()}"
        return client

    def asked(self) -> list[str]:
        """The permissions that its calls asked for since the last time, and got.

        The calls that find out whether an API answers need no permission to tell.
        """
        said = json.loads(self._cloud.run("permissions", _MEMBER, "--json", "--clear"))[_MEMBER]
        return sorted(name for name, granted in said.items() if granted)

    def _bind(self, resource: str, role: str, only: str = "") -> None:
        asked = {"options": {"requestedPolicyVersion": 3}}
        whole = "resourcemanager" in resource
        address = f"{resource}:getIamPolicy"
        policy = self._post(address, asked) if whole else self._get(address)
        condition = {"condition": {"title": "stack", "expression": only}} if only else {}
        policy["bindings"].append({"role": role, "members": [_MEMBER], **condition})
        policy["version"] = 3
        self._post(f"{resource}:setIamPolicy", {"policy": policy})

    def _get(self, url: str) -> dict[str, Any]:
        return self._read(self._owner.get(f"https://{url}", timeout=30))

    def _post(self, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._read(self._owner.post(f"https://{url}", json=body or {}, timeout=30))

    def _read(self, answer: requests.Response) -> dict[str, Any]:
        assert answer.ok, answer.text
        read: dict[str, Any] = answer.json()
        return read
