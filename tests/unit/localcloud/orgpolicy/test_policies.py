"""Organization policies of a project."""

from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
POLICIES = f"orgpolicy.googleapis.com/v2/projects/{PROJECT}/policies"
NAME = f"projects/{PROJECT}/policies/compute.vmExternalIpAccess"
DENIED = {"rules": [{"denyAll": True}]}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("orgpolicy.googleapis.com",)


@pytest.fixture
def api(api: Client) -> Client:
    """The owner, who names a quota project, as people have to."""
    api.session.headers["X-Goog-User-Project"] = PROJECT
    return api


def test_a_policy_holds_from_when_it_is_set_until_it_is_deleted(api: Client) -> None:
    effective = f"{POLICIES}/compute.vmExternalIpAccess:getEffectivePolicy"
    assert api.get(effective)["spec"] == {"rules": []}
    api.get(f"{POLICIES}/compute.vmExternalIpAccess", status=404)
    made = api.post(POLICIES, {"name": NAME, "spec": DENIED})
    number = projects.number(PROJECT)
    assert made["name"] == f"projects/{number}/policies/compute.vmExternalIpAccess"
    api.post(POLICIES, {"name": NAME, "spec": DENIED}, status=409)
    assert api.get(effective)["spec"]["rules"] == DENIED["rules"]
    assert made["etag"] == made["spec"]["etag"]
    assert made["spec"]["updateTime"]
    assert api.get(f"{POLICIES}/compute.vmExternalIpAccess") == made
    api.delete(f"{POLICIES}/compute.vmExternalIpAccess")
    assert api.get(effective)["spec"] == {"rules": []}


def test_a_dry_run_is_kept_and_refuses_nothing(api: Client) -> None:
    made = api.post(POLICIES, {"name": NAME, "dryRunSpec": DENIED})
    assert made["dryRunSpec"]["rules"] == DENIED["rules"]
    assert "spec" not in made
    effective = f"{POLICIES}/compute.vmExternalIpAccess:getEffectivePolicy"
    assert api.get(effective)["spec"] == {"rules": []}
    gone = api.get(f"{POLICIES}/compute.requireOsLogin", status=404)["error"]["message"]
    assert gone == "Requested entity was not found."


def test_a_name_that_no_constraint_has_is_refused(api: Client) -> None:
    api.post(POLICIES, {"name": f"projects/{PROJECT}/policies/nothing"}, status=400)
    api.get(f"{POLICIES}/nothing:getEffectivePolicy", status=400)


def test_strangers_may_not_read_policies(api: Client) -> None:
    effective = f"{POLICIES}/compute.requireOsLogin:getEffectivePolicy"
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{manager}:getIamPolicy")
    who, role = "user:stranger@example.com", "roles/serviceusage.serviceUsageConsumer"
    policy["bindings"].append({"role": role, "members": [who]})
    api.post(f"{manager}:setIamPolicy", {"policy": policy})
    stranger = api.as_member(who)
    stranger.session.headers["X-Goog-User-Project"] = PROJECT
    assert "orgpolicy.policy.get" in stranger.get(effective, status=403)["error"]["message"]
