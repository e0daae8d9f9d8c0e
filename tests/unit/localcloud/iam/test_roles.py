from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from localcloud.app import LocalCloud
from localcloud.core import access, projects
from localcloud.core.clock import VirtualClock
from localcloud.services import all_apis
from localcloud.testing import Client
from tpu_infra.deployer import _catalog

PROJECT = projects.DEFAULT_PROJECT
ROLES = f"iam.googleapis.com/v1/projects/{PROJECT}/roles"
POLICY = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
DAY = 24 * 3600.0
MEMBER = "user:operator@example.com"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("iam.googleapis.com", "tpu.googleapis.com")


def test_a_predefined_role_lists_single_permissions(api: Client) -> None:
    role = api.get("iam.googleapis.com/v1/roles/tpu.viewer")
    assert "tpu.nodes.get" in role["includedPermissions"]
    assert not [name for name in role["includedPermissions"] if "*" in name]
    assert "tpu.nodes.create" not in role["includedPermissions"]
    api.get("iam.googleapis.com/v1/roles/tpu.nothing", status=404)


def test_lists_leave_permissions_out_unless_asked(api: Client) -> None:
    role = {"title": "Look", "includedPermissions": ["tpu.nodes.list"]}
    made = api.post(ROLES, {"roleId": "look", "role": role})
    [shown] = api.get(ROLES)["roles"]
    assert "includedPermissions" not in shown
    assert api.get(ROLES, view="FULL")["roles"] == [made]


def test_a_custom_role_grants_what_it_includes_until_it_is_deleted(api: Client) -> None:
    nodes = f"tpu.googleapis.com/v2/projects/{PROJECT}/locations/us-central1-b/nodes"
    body = {"roleId": "look", "role": {"title": "Look", "includedPermissions": ["tpu.nodes.list"]}}
    name = api.post(ROLES, body)["name"]
    policy = api.post(f"{POLICY}:getIamPolicy")
    policy["bindings"].append({"role": name, "members": [MEMBER]})
    api.post(f"{POLICY}:setIamPolicy", {"policy": policy})
    operator = api.as_member(MEMBER)
    assert operator.get(nodes) == {}
    api.delete(f"{ROLES}/look")
    operator.get(nodes, status=403)
    api.post(f"{ROLES}/look:undelete", {})
    operator.get(nodes)
    api.patch(f"{ROLES}/look", {"includedPermissions": ["tpu.nodes.get"]})
    operator.get(nodes, status=403)


def test_a_deleted_role_comes_back_within_seven_days_and_keeps_its_id_for_thirty_more(
    local_cloud: LocalCloud, api: Client, clock: VirtualClock
) -> None:
    def refused() -> str:
        answer = api.post(ROLES, {"roleId": "look", "role": {}}, status=400)["error"]
        assert answer["status"] == "FAILED_PRECONDITION"
        return str(answer["message"])

    api.post(ROLES, {"roleId": "look", "role": {"title": "Look"}})
    assert api.delete(f"{ROLES}/look")["deleted"]
    assert "existing role with that role_id in a deleted state" in refused()
    clock.advance(6 * DAY)
    assert api.get(f"{ROLES}/look")["deleted"]
    assert api.get(ROLES) == {}
    api.patch(f"{ROLES}/look", {"title": "1"}, status=400)
    assert "deleted" not in api.post(f"{ROLES}/look:undelete", {})
    assert api.get(ROLES)["roles"]
    api.delete(f"{ROLES}/look")
    clock.advance(7 * DAY)
    api.get(f"{ROLES}/look", status=404)
    api.post(f"{ROLES}/look:undelete", {}, status=404)
    api = Client(local_cloud)
    assert refused() == "You can't create a role_id (look) which has been marked for deletion."
    clock.advance(30 * DAY)
    assert Client(local_cloud).post(ROLES, {"roleId": "look", "role": {}})["name"].endswith("/look")


def test_a_custom_role_with_an_unknown_permission_is_refused(api: Client) -> None:
    role = {"includedPermissions": ["tpu.*", "tpu.nodes.get", "tpu.queuedResources.delete"]}
    error = api.post(ROLES, {"roleId": "wrong", "role": role}, status=400)["error"]
    assert error["message"] == "Permission tpu.*, tpu.queuedResources.delete is not valid."
    assert error["status"] == "INVALID_ARGUMENT"
    api.post(ROLES, {"roleId": "right", "role": {"title": "Right"}})
    wrong = {"includedPermissions": ["tpu.nodes.paint"]}
    error = api.patch(f"{ROLES}/right", wrong, status=400)["error"]
    assert error["message"] == "Permission tpu.nodes.paint is not valid."
    api.post(ROLES, {"roleId": "a b", "role": {}}, status=400)


def test_permissions_that_a_role_in_a_project_can_have_are_listed(api: Client) -> None:
    url = "iam.googleapis.com/v1/permissions:queryTestablePermissions"
    project = f"//cloudresourcemanager.googleapis.com/projects/{PROJECT}"
    names: set[str] = set()
    token = ""
    while True:
        body = {"fullResourceName": project, "pageSize": 100, "pageToken": token}
        answer = api.post(url, {key: value for key, value in body.items() if value})
        names |= {each["name"] for each in answer["permissions"]}
        if not (token := answer.get("nextPageToken", "")):
            break
    wanted = {
        name
        for by_kind in _catalog()["groups"].values()
        for kind in by_kind.values()
        for name in kind
    }
    assert wanted <= names
    assert not [name for name in names if name.startswith("billing.")]
    api.post(url, {"fullResourceName": "//x/y"}, status=400)


def test_a_stale_etag_of_a_role_is_a_conflict(api: Client) -> None:
    old = api.post(ROLES, {"roleId": "look", "role": {"title": "1"}})["etag"]
    api.patch(f"{ROLES}/look", {"title": "2", "etag": old})
    error = api.patch(f"{ROLES}/look", {"title": "3", "etag": old}, status=409)["error"]
    assert error["status"] == "ABORTED"


def test_every_permission_that_a_method_asks_for_is_in_a_role_beside_the_owners() -> None:
    asked = {name for api in all_apis() for name in api.permissions()}
    roles = access.predefined_roles()
    patterns = {name for role in roles if role != "roles/owner" for name in roles[role]}
    ungranted = {n for n in asked if not any(fnmatchcase(n, pattern) for pattern in patterns)}
    assert ungranted == set()
