"""Permissions that Google does not have: in roles, in `testIamPermissions`, in our own code."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import access, projects
from localcloud.core.call import Principal
from localcloud.services import all_apis
from localcloud.testing import Client
from tpu_infra import deployer

PROJECT = projects.DEFAULT_PROJECT
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}"
ROLES = f"{IAM}/roles"
MANAGER = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
KMS = f"cloudkms.googleapis.com/v1/projects/{PROJECT}/locations/us-central1/keyRings"
TOPIC = f"pubsub.googleapis.com/v1/projects/{PROJECT}/topics/topic"
BILLING = "cloudbilling.googleapis.com/v1"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    names = ("cloudbilling", "cloudkms", "compute", "iam", "pubsub", "storage")
    return tuple(f"{name}.googleapis.com" for name in names)


@pytest.mark.parametrize(
    "name",
    [
        *("tpu.nodes", "", "nosuch.things.get", "compute.nosuch.get", "bigquery.tables.*"),
        *("iam.workloadIdentityPools.create", "TPU.nodes.get", "resourcemanager.projects.list"),
        *("billing.budgets.get", "resourcemanager.organizations.get"),
    ],
)
def test_custom_roles_cannot_have_permissions_that_projects_lack(api: Client, name: str) -> None:
    api.post(ROLES, {"roleId": "wrong", "role": {"includedPermissions": [name]}}, status=400)


def test_a_permission_that_the_local_cloud_does_not_know_is_accepted_and_reported(
    api: Client, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["compute.instances.suspend", "compute.autoscalers.get", "bigquery.tables.get"]
    names.append("iam.googleapis.com/workforcePools.get")
    api.post(ROLES, {"roleId": "more", "role": {"includedPermissions": names}})
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [name for name in names if any(line.startswith(name) for line in said)] == names[1:]


def refused(api: Client, address: str, *names: str) -> str:
    body = {"permissions": list(names)}
    error = api.post(f"{address}:testIamPermissions", body, status=400)["error"]
    assert error["status"] == "INVALID_ARGUMENT"
    return str(error["message"])


def test_permissions_that_no_project_can_have_are_not_tested_on_one(api: Client) -> None:
    for name in ("tpu.queuedResources.get", "billing.budgets.get", "resourcemanager.projects.list"):
        said = f"Permission {name} is not valid for this resource."
        assert refused(api, MANAGER, "tpu.nodes.get", name) == said
    body = {"permissions": ["tpu.nodes.get", "bigquery.tables.get"]}
    assert api.post(f"{MANAGER}:testIamPermissions", body) == body


def test_permissions_of_another_service_are_not_tested_on_a_resource(api: Client) -> None:
    email = api.post(f"{IAM}/serviceAccounts", {"accountId": "someone"})["email"]
    api.post(KMS, keyRingId="r")
    api.post(f"{KMS}/r/cryptoKeys", {"purpose": "ENCRYPT_DECRYPT"}, cryptoKeyId="k")
    api.put(TOPIC, {})
    account = api.get(f"{BILLING}/projects/{PROJECT}/billingInfo")["billingAccountName"]
    for address, right in {
        f"{IAM}/serviceAccounts/{email}": "iam.serviceAccounts.actAs",
        f"{KMS}/r/cryptoKeys/k": "cloudkms.cryptoKeys.get",
        TOPIC: "pubsub.topics.publish",
        f"{BILLING}/{account}": "billing.budgets.get",
    }.items():
        api.post(f"{address}:testIamPermissions", {"permissions": [right]})
        wrong = f"{right.rpartition('.')[0]}.paint"
        assert refused(api, address, right, wrong).startswith(f"Permission {wrong} is not valid")
        refused(api, address, right, "tpu.nodes.get")


def test_permissions_of_projects_are_not_tested_on_buckets(api: Client) -> None:
    url = "storage.googleapis.com/storage/v1/b"
    api.post(url, {"name": "a-bucket-of-mine"}, project=PROJECT)
    tested = f"{url}/a-bucket-of-mine/iam/testPermissions"
    assert api.get(tested, permissions="storage.objects.get")["permissions"]
    for name in ("storage.buckets.list", "storage.objects.paint", "tpu.nodes.get"):
        api.get(tested, permissions=name, status=400)


def test_every_permission_that_a_method_or_a_role_names_is_one_of_googles() -> None:
    asked = {name for api in all_apis() for name in api.permissions()}
    held = {name for names in access.predefined_roles().values() for name in names}
    named = {name for name in held if "*" not in name}
    assert (asked | named) - access.known_permissions() == set()


def test_every_permission_that_a_deployer_or_a_machine_gets_is_one_of_googles() -> None:
    entries = [*deployer._catalog()["groups"].values(), deployer._catalog()["billingAccount"]]
    listed = {n for entry in entries for kind in deployer.ALL for n in entry.get(kind, ())}
    mine = {*listed, *deployer.sweeper(), *deployer.TPU_PERMISSIONS, "tpu.nodes.create"}
    mine |= {name for names in deployer._catalog()["agent"].values() for name in names}
    assert mine - access.known_permissions() == set()


def test_a_handler_that_asks_for_a_permission_that_google_does_not_have_fails(
    local_cloud: LocalCloud,
) -> None:
    someone = Principal("user:someone@example.com")
    with pytest.raises(LookupError, match=r"tpu.queuedResources.get is not a permission"):
        access.allowed(local_cloud.cloud, someone, "tpu.queuedResources.get", ["projects/x"])
