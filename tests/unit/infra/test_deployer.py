"""The list of what a deployer must be allowed: well-formed, and by settings."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud.core import conditions
from tpu_infra import deployer
from tpu_infra.settings.parse import parse

from .conftest import Run, config

# The permissions that grant, by the modules of the resources that do.
GRANTS = {
    "kms": "cloudkms.cryptoKeys.setIamPolicy",
    "projects": "resourcemanager.projects.setIamPolicy",
    "pubsub": "pubsub.topics.setIamPolicy",
    "secretmanager": "secretmanager.secrets.setIamPolicy",
    "serviceaccount": "iam.serviceAccounts.setIamPolicy",
    "storage": "storage.buckets.setIamPolicy",
}


def of(**settings: Any) -> deployer.Permissions:
    return deployer.permissions_of(parse(config(**settings), "test"))


def test_every_group_is_named_by_its_settings_and_says_nothing_twice() -> None:
    assert {
        *deployer._catalog()["groups"],
        *deployer._catalog()["grants"],
    } == deployer._APPLIES.keys()
    for group, by_kind in deployer._catalog()["groups"].items():
        assert by_kind.keys() <= set(deployer.ALL), group
        for names in by_kind.values():
            assert names == sorted(set(names)), group


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"bucket": {"encryption": {}}}, "cloudkms.keyRings.create"),
        ({"bucket": {"forceDestroy": True}}, "storage.objects.delete"),
        ({"budget": {"amount": 5, "emails": ["a@example.com"]}},
         "monitoring.notificationChannels.create"),
        ({"vm": {"publicIp": True}}, "compute.subnetworks.useExternalIp"),
    ],
)  # fmt: skip
def test_what_a_stack_has_besides_takes_more(settings: dict[str, Any], more: str) -> None:
    assert more not in of().of_project()
    assert more in of(**settings).of_project()


def test_a_stack_in_a_given_network_takes_no_permission_to_make_one() -> None:
    given = of(network={"create": False}, enableApis=False)
    assert not [name for name in given.of_project() if "networks.create" in name]
    assert "serviceusage.services.enable" not in given.of_project()


@pytest.mark.parametrize(
    ("bucket", "name"),
    [
        ({}, "some-project-tpu-stack-test"),
        ({"create": False, "name": "given"}, "given"),
        ({"create": False, "name": "given", "forceDestroy": True}, "given"),
        ({"forceDestroy": True}, ""),
    ],
)
def test_a_deployer_replaces_what_the_stack_uploads_in_a_bucket_that_stays_and_no_more(
    bucket: dict[str, Any], name: str
) -> None:
    settings = parse(config(bucket=bucket), "test")
    condition = deployer.objects_condition(settings, "test")
    assert bool(condition) == bool(name)
    if not name:
        return
    conditions.check(condition, ("resource",))
    for path, may in {
        "agent/declaration.json": True,
        "data/manifest.json": True,
        "wheels/1/a.whl": True,
        "agent/state.json": False,
        "jobs/train/checkpoints/ckpt-1": False,
    }.items():
        names = conditions.resource(f"buckets/{name}/objects/{path}")
        assert conditions.evaluate(condition, names) is may, path
    assert not conditions.evaluate(condition, conditions.resource("projects/some-project"))


def test_what_is_of_the_billing_account_is_in_no_role_of_the_project() -> None:
    budget = of(budget={"amount": 5})
    assert not [name for name in budget.of_project() if name.startswith("billing.")]
    assert budget.of_billing_account(deployer.READ) == ["billing.budgets.get"]
    assert of().billing_role == ""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bucket": {"encryption": {}}, "vm": {"opsAgent": True}},
        {"limits": {"idleMinutes": 60, "role": "tpu_stack_limits"}},
        {"limits": {"role": "tpu_stack_limits"}, "recovery": {"enabled": True}},
        {"messages": {"emails": ["a@example.com"], "pubsubTopic": "tpu-messages"}},
        {"jobs": {"vertex": {"submitters": ["user:me@example.com"]}}},
        {"jobs": {"enabled": True}},
        {"jobs": {"enabled": True, "asRoot": True}},
    ],
)
def test_the_roles_that_a_stack_gives_are_those_on_the_list(
    run: Run, settings: dict[str, Any]
) -> None:
    engine, _ = run(config(**settings))
    given: dict[str, set[str]] = {}
    for one in engine.resources:
        if one.kind.lower().endswith("iammember"):
            permission = GRANTS[one.kind.split(":")[1].split("/")[0]]
            given.setdefault(permission, set()).add(one.inputs["role"])
    own = {"projects/some-project/roles/tpu_stack_limits"} if "limits" in settings else set()
    given["resourcemanager.projects.setIamPolicy"] -= own
    assert given == {name: set(granted) for name, granted in of(**settings).grants.items()}


def test_each_group_that_may_grant_names_the_roles() -> None:
    grants = deployer._catalog()["grants"]
    common = grants["roles for its machines"].keys()
    for group, by_kind in deployer._catalog()["groups"].items():
        held = {name for names in by_kind.values() for name in names}
        granting = {name for name in held if name.endswith(".setIamPolicy")}
        assert granting == grants.get(group, {}).keys() - (common - granting), group


def test_a_stack_with_accounts_and_grants_of_others_takes_no_right_to_make_either() -> None:
    account = {"serviceAccount": "tpu@hub-project.iam.gserviceaccount.com", "grantRoles": False}
    jobs = {"enabled": True, "serviceAccount": "jobs@hub-project.iam.gserviceaccount.com"}
    key = "projects/hub-project/locations/us-central1/keyRings/r/cryptoKeys/k"
    asked = of(**account, jobs=jobs, bucket={"encryption": {"key": key}})
    assert not asked.grants
    assert [name for name in asked.of_project() if name.startswith("iam.")] == [
        "iam.serviceAccounts.actAs"
    ]
    assert not [name for name in asked.of_project() if name.endswith("IamPolicy")]


def test_a_stack_whose_role_is_there_makes_none() -> None:
    limits = {"idleMinutes": 60, "role": "tpu_stack_limits"}
    assert not [name for name in of(limits=limits).of_project() if name.startswith("iam.roles")]


def test_who_only_looks_may_change_nothing() -> None:
    everything = {
        "bucket": {"forceDestroy": True, "encryption": {}},
        "budget": {"amount": 5, "emails": ["a@example.com"], "pubsubTopic": "alerts"},
        "limits": {"idleMinutes": 60},
    }
    looking = of(**everything).of_project(deployer.READ)
    verbs = {name.rpartition(".")[2] for name in looking}
    assert verbs == {"get", "getIamPolicy", "list", "use"}
