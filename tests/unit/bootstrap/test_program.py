"""What the program declares."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.bootstrap.conftest import TPU, Resources, of, write_stack
from tpu_bootstrap.settings import BootstrapError
from tpu_infra.deployer import READ, objects_condition, permissions_of
from tpu_infra.settings.parse import load_stack_file, stack_path

ENVIRONMENTS = ("dev", "prod", "requests")
ONLY = "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([{}])"
OWN = "some-project-tpu-stack-ci-state"


def only(*granted: str) -> str:
    return ONLY.format(", ".join(f"'{role}'" for role in granted))


def roles(resources: Resources, project: str) -> dict[str, list[str]]:
    """The permissions of a project's roles."""
    made = of(resources, "IAMCustomRole").values()
    theirs = [each for each in made if each["project"] == project]
    return {each["title"].removeprefix("tpu-stack: "): each["permissions"] for each in theirs}


def test_each_environment_has_a_private_versioned_state_and_a_key_that_is_rotated(
    declared: Callable[..., Resources],
) -> None:
    resources = declared()
    buckets = of(resources, "Bucket").values()
    assert {each["name"] for each in buckets} == {OWN, *(f"{OWN}-{name}" for name in ENVIRONMENTS)}
    for bucket in buckets:
        assert bucket["versioning"] == {"enabled": True}
        assert bucket["publicAccessPrevention"] == "enforced"
        # What a deployer deletes, old versions of its state too, comes back for a month.
        assert bucket["softDeletePolicy"] == {"retentionDurationSeconds": 30 * 24 * 3600}
    keys = of(resources, "CryptoKey").values()
    assert {each["name"] for each in keys} == set(ENVIRONMENTS)
    assert {each["rotationPeriod"] for each in keys} == {"7776000s"}


def test_an_account_sees_its_own_environments_state_key_and_project_and_no_other(
    declared: Callable[..., Resources],
) -> None:
    resources = declared()
    assert len(of(resources, "Account")) == 2 * len(ENVIRONMENTS)
    for name in ENVIRONMENTS:
        for does in ("deploy", "preview"):
            account = f"tpu-stack-ci-{name}-{does}@some-project.iam.gserviceaccount.com"
            theirs = [i for _, _, i in resources if i.get("member") == f"serviceAccount:{account}"]
            reached = {
                each.get("project") or each.get("bucket") or each.get("cryptoKeyId")
                for each in theirs
            }
            assert reached == {f"project-{name}", f"{OWN}-{name}", f"{name}-key-id"}
    # Nobody of the pipeline has bootstrap's own state.
    assert OWN not in {each["bucket"] for each in of(resources, "BucketIAMMember").values()}


def granters(
    resources: Resources, name: str, prefix: str = "tpu_stack_ci"
) -> dict[str, tuple[list[str], str]]:
    """What an environment's roles that grant hold, and the condition that they are bound under."""
    made, found = of(resources, "IAMCustomRole"), {}
    for key, bound in of(resources, "IAMMember").items():
        if key.startswith(f"{name}-granter-"):
            kind = key.rpartition("-")[2]
            role = made[f"{name}-{prefix}_granter_{kind}"]
            found[kind] = (role["permissions"], bound["condition"]["expression"])
    return found


def test_the_roles_are_those_of_the_list_and_grants_are_bound_to_the_stacks_own(
    declared: Callable[..., Resources], stacks: Path
) -> None:
    made = declared()
    for name in ("dev", "prod"):
        permissions = permissions_of(load_stack_file(stack_path(stacks, name)))
        theirs = roles(made, f"project-{name}")
        deployer = theirs["tpu_stack_ci_deployer"]
        granting = [one for held, _ in granters(made, name).values() for one in held]
        assert sorted([*deployer, *granting]) == permissions.of_project()
        assert theirs["tpu_stack_ci_previewer"] == permissions.of_project(READ)
        assert ("tpu_stack_limits" in theirs) == (name == "dev")
        assert not [each for each in deployer if each.endswith(".setIamPolicy")]
    project = ["roles/logging.logWriter", "roles/tpu.viewer"]
    bucket = ["roles/storage.legacyBucketReader", "roles/storage.objectUser"]
    own = "projects/project-dev/roles/tpu_stack_limits"
    assert granters(made, "dev") == {
        "projects": (["resourcemanager.projects.setIamPolicy"], only(*project, own)),
        "buckets": (["storage.buckets.setIamPolicy"], only(*bucket)),
    }
    key = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    assert granters(made, "prod") == {
        "projects": (["resourcemanager.projects.setIamPolicy"], only(*project)),
        "buckets": (["storage.buckets.setIamPolicy"], only(*bucket)),
        "cryptoKeys": (["cloudkms.cryptoKeys.setIamPolicy"], only(key)),
    }


def test_no_condition_of_a_stack_with_everything_names_more_than_ten_roles_or_a_topic(
    declared: Callable[..., Resources], stacks: Path
) -> None:
    everything = {
        "bucket": {"encryption": {}},
        "budget": {"amount": 5, "pubsubTopic": "alerts"},
        "jobs": {"vertex": {"submitters": ["user:me@example.com"]}},
        "limits": {"idleMinutes": 30, "role": "tpu_stack_limits"},
        "messages": {"emails": ["a@example.com"], "pubsubTopic": "messages"},
        "recovery": {"enabled": True},
        "tpu": {**TPU, "capacity": "spot"},
        "vm": {"opsAgent": True},
    }
    write_stack(stacks, "dev", **everything)
    made = declared()
    bound = granters(made, "dev")
    assert bound.keys() == {"buckets", "cryptoKeys", "projects", "serviceAccounts"}
    counts = [condition.count("roles/") for _, condition in bound.values()]
    assert (max(counts), sum(counts)) == (5, 10)
    # Pub/Sub refuses whoever is bound to roles.
    unbound = roles(made, "project-dev")["tpu_stack_ci_deployer"]
    assert {each for each in unbound if each.endswith(".setIamPolicy")} == {
        "pubsub.topics.setIamPolicy"
    }


def test_a_deployer_replaces_and_deletes_its_objects_in_a_bucket_that_stays(
    declared: Callable[..., Resources], stacks: Path
) -> None:
    members = of(declared(), "IAMMember")
    bound = members["prod-objects"]
    assert bound["role"] == "roles/storage.objectUser"
    assert bound["project"] == "project-prod"
    settings = load_stack_file(stack_path(stacks, "prod"))
    assert bound["condition"]["expression"] == objects_condition(settings, "prod")
    # Those of requests go with their stacks.
    assert "requests-objects" not in members


def test_the_environment_of_requests_may_do_what_the_stack_that_they_are_like_does(
    declared: Callable[..., Resources],
) -> None:
    made = declared()
    deletes = "storage.buckets.delete"
    # Their buckets go with them, whatever the stack says that they are like.
    assert deletes in roles(made, "project-requests")["tpu_stack_ci_deployer"]
    assert deletes not in roles(made, "project-dev")["tpu_stack_ci_deployer"]


def test_a_deployer_has_further_roles_in_its_own_project_alone(
    declared: Callable[..., Resources],
) -> None:
    environments = {"dev": {"project": "project-dev", "deployerRoles": ["roles/pubsub.admin"]}}
    more = of(declared(environments=environments), "IAMMember")["dev-pubsub.admin"]
    assert (more["project"], more["role"]) == ("project-dev", "roles/pubsub.admin")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"limits": {"idleMinutes": 30}},
            "limits.role: (not set) requires the right to change roles",
        ),
        ({"nosuch": 1}, "nosuch"),
    ],
)
def test_a_stack_whose_rights_can_not_be_bound_is_refused_with_all_others(
    declared: Callable[..., Resources], stacks: Path, settings: dict[str, Any], said: str
) -> None:
    write_stack(stacks, "dev", **settings)
    file = stack_path(stacks, "prod")
    file.write_text(file.read_text().replace("project-prod", "project-dev"))
    with pytest.raises(BootstrapError) as error:
        declared()
    assert said in str(error.value)
    assert "isn't the project of environment prod, project-prod" in str(error.value)


def test_an_account_that_is_there_already_is_not_taken(declared: Callable[..., Resources]) -> None:
    accounts = of(declared(), "Account")
    assert not [each for each in accounts.values() if each.get("createIgnoreAlreadyExists")]


def test_names_have_googles_sizes_and_what_is_made_again_has_others(
    declared: Callable[..., Resources], stacks: Path
) -> None:
    key = {"namePrefix": "a" * 18, "repository": f"group/{'g' * 90}/mine"}
    write_stack(stacks, "dev", limits={"idleMinutes": 30, "role": "tpu_stack_limits_2"})
    made = declared(**key, environments={"dev": {"project": "project-dev"}})
    (pool,) = of(made, "WorkloadIdentityPool").values()
    assert re.fullmatch(r"a{18}-\d{12}", pool["workloadIdentityPoolId"])
    ids = {each["roleId"] for each in of(made, "IAMCustomRole").values()}
    assert max(map(len, ids)) <= 64
    assert {bool(re.search(r"_20\d\dw\d\d$", each)) for each in ids - {"tpu_stack_limits_2"}} == {
        True
    }
    assert "roles/tpu_stack_limits_2'" in granters(made, "dev", "a" * 18)["projects"][1]
    names = {each["displayName"] for each in of(made, "Account").values()}
    assert {len(name) for name in names} == {100}
    assert {name.partition(" of ")[0] for name in names} == {"deploys dev", "previews dev"}
