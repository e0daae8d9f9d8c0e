"""Conditions of IAM: a right to grant that reaches no further than the roles that it names."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import projects
from localcloud.testing import Client

PROJECT = f"projects/{projects.DEFAULT_PROJECT}"
URL = f"cloudresourcemanager.googleapis.com/v1/{PROJECT}"
BUCKETS = "storage.googleapis.com/storage/v1/b"
MEMBER = "user:deployer@example.com"
FRIEND = "user:friend@example.com"
ONLY = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly({})"
ALLOWED = "roles/logging.logWriter"
ELEVEN = [f"roles/{number}" for number in range(11)]
CONDITION = {"title": "grants", "expression": ONLY.format([ALLOWED])}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("pubsub.googleapis.com",)


def policy(api: Client, version: int = 3) -> dict[str, Any]:
    return api.post(f"{URL}:getIamPolicy", {"options": {"requestedPolicyVersion": version}})


def bind(api: Client, role: str, member: str, status: int = 200, **more: Any) -> dict[str, Any]:
    """Adds a binding, as the provider does."""
    changed = policy(api)
    changed["bindings"].append({"role": role, "members": [member], **more})
    body = {"policy": {**changed, "version": 3}}
    return api.post(f"{URL}:setIamPolicy", body, status=status)


@pytest.fixture
def deployer(api: Client) -> Client:
    """May set the project's policy, as far as the condition goes."""
    bind(api, "roles/resourcemanager.projectIamAdmin", MEMBER, condition=CONDITION)
    return api.as_member(MEMBER)


def test_a_caller_limited_to_one_role_grants_and_revokes_only_that_role(
    api: Client, deployer: Client
) -> None:
    bind(deployer, ALLOWED, FRIEND)
    for role in ("roles/owner", "roles/viewer", "roles/resourcemanager.projectIamAdmin"):
        for member in (MEMBER, FRIEND):
            assert bind(deployer, role, member, 403)["error"]["status"] == "PERMISSION_DENIED"
    before = policy(api)
    # Neither does it take somebody's role away, or its own condition.
    for binding in before["bindings"]:
        kept = [each for each in before["bindings"] if each is not binding]
        status = 200 if binding["role"] == ALLOWED else 403
        if binding["role"] != "roles/owner":
            body = {"policy": {"version": 3, "bindings": kept}}
            deployer.post(f"{URL}:setIamPolicy", body, status=status)
    bare = [{k: v for k, v in each.items() if k != "condition"} for each in before["bindings"]]
    body = {"policy": {"version": 3, "bindings": bare}}
    deployer.post(f"{URL}:setIamPolicy", body, status=403)


def test_the_right_holds_for_policies_of_buckets_too(api: Client) -> None:
    api.post(BUCKETS, {"name": "a-bucket"}, project=projects.DEFAULT_PROJECT)
    expression = ONLY.format(["roles/storage.objectUser"])
    bind(api, "roles/storage.admin", MEMBER, condition={"title": "t", "expression": expression})
    deployer = api.as_member(MEMBER)
    known = deployer.get(f"{BUCKETS}/a-bucket/iam")
    for role, status in (("roles/storage.objectUser", 200), ("roles/storage.admin", 403)):
        more = [*known["bindings"], {"role": role, "members": [FRIEND]}]
        deployer.put(f"{BUCKETS}/a-bucket/iam", {"bindings": more}, status=status)


def test_a_grant_limited_to_roles_is_refused_where_the_service_names_none(
    api: Client,
) -> None:
    topic = f"pubsub.googleapis.com/v1/{PROJECT}/topics/alerts"
    api.put(topic, {})
    publisher = {"role": "roles/pubsub.publisher", "members": [FRIEND]}
    policy = {"policy": {"bindings": [publisher]}}
    bound = {"title": "t", "expression": ONLY.format(["roles/pubsub.publisher"])}
    bind(api, "roles/pubsub.admin", MEMBER, condition=bound)
    deployer = api.as_member(MEMBER)
    deployer.get(topic)
    deployer.post(f"{topic}:setIamPolicy", policy, status=403)
    bind(api, "roles/pubsub.admin", MEMBER)
    deployer.post(f"{topic}:setIamPolicy", policy)
    # Neither is such a condition taken where the project's policy is not meant.
    conditional = {"version": 3, "bindings": [{**publisher, "condition": bound}]}
    api.post(f"{topic}:setIamPolicy", {"policy": conditional}, status=501)


def test_a_role_of_storage_reaches_no_further_than_the_objects_that_its_condition_names(
    api: Client,
) -> None:
    api.post(BUCKETS, {"name": "a-bucket"}, project=projects.DEFAULT_PROJECT)
    upload = "storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    for name in ("data/one", "jobs/one"):
        api.post(upload, {}, uploadType="media", name=name)
    expression = "resource.name.startsWith('projects/_/buckets/a-bucket/objects/data/')"
    condition = {"title": "t", "expression": expression}
    bind(api, "roles/storage.objectUser", MEMBER, condition=condition)
    deployer = api.as_member(MEMBER)
    deployer.post(upload, {}, uploadType="media", name="data/one")
    deployer.delete(f"{BUCKETS}/a-bucket/o/jobs%2Fone", status=403)
    deployer.post(upload, {}, uploadType="media", name="jobs/two", status=403)
    deployer.delete(f"{BUCKETS}/a-bucket/o/data%2Fone", status=204)
    # The role has it, the condition does not name the project.
    deployer.get(URL, status=403)


def test_a_false_condition_grants_nothing(api: Client) -> None:
    false = {"title": "t", "expression": "api.getAttribute('nothing', 'no') == 'yes'"}
    bind(api, "roles/tpu.viewer", MEMBER, condition=false)
    body = {"permissions": ["tpu.nodes.get"]}
    assert api.as_member(MEMBER).post(f"{URL}:testIamPermissions", body) == {}


def test_reading_an_older_policy_version_cannot_drop_its_conditions(
    api: Client, deployer: Client
) -> None:
    shown = policy(api, 1)
    assert shown["version"] == 1
    assert not any("condition" in binding for binding in shown["bindings"])
    error = api.post(f"{URL}:setIamPolicy", {"policy": shown}, status=400)["error"]
    assert "_withcond_" in error["message"]
    old = {"version": 1, "bindings": [{"role": "roles/owner", "members": [MEMBER]}]}
    error = api.post(f"{URL}:setIamPolicy", {"policy": old}, status=400)["error"]
    assert "version 3" in error["message"]


@pytest.mark.parametrize(
    ("role", "expression", "status", "said"),
    [
        (ALLOWED, "resource.name.startsWith('projects/x')", 501, "does not understand"),
        (ALLOWED, "request.time < timestamp('2030-01-01T00:00:00Z')", 501, "does not understand"),
        (ALLOWED, "api.getAttribute('a', []).all(r, r == 'b')", 501, "does not understand"),
        (ALLOWED, "", 501, "does not understand"),
        ("roles/owner", ONLY.format([]), 400, "primitive roles"),
        (ALLOWED, ONLY.format(ELEVEN), 400, "hasOnly() cannot have more than 10 elements"),
        (ALLOWED, ONLY.replace("[]", "['unknown']").format([]), 400, "only accept empty list"),
        (ALLOWED, " || ".join(["!true"] * 7), 400, "operators count must not be more than 12"),
    ],
)
def test_a_condition_that_is_not_understood_is_refused_rather_than_ignored(
    api: Client, role: str, expression: str, status: int, said: str
) -> None:
    condition = {"title": "t", "expression": expression}
    error = bind(api, role, MEMBER, status, condition=condition)["error"]
    assert said in error["message"]


@pytest.mark.parametrize("expression", [ONLY.format(ELEVEN[:10]), " || ".join(["true"] * 13)])
def test_a_condition_of_googles_greatest_size_is_taken(api: Client, expression: str) -> None:
    bind(api, ALLOWED, MEMBER, condition={"title": "t", "expression": expression})
