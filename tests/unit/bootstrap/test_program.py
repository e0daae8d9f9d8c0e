"""What the program declares."""

from __future__ import annotations

from collections.abc import Callable

import pulumi
import pytest

from bootstrap.components.accounts import DEPLOYER_ROLES, PREVIEWER_ROLES
from tests.unit.bootstrap.conftest import Resources, of


def test_the_state_is_versioned_and_private_and_its_key_is_rotated(
    declared: Callable[..., Resources],
) -> None:
    resources = declared()
    (bucket,) = of(resources, "Bucket").values()
    assert bucket["versioning"] == {"enabled": True}
    assert bucket["publicAccessPrevention"] == "enforced"
    (key,) = of(resources, "CryptoKey").values()
    assert key["rotationPeriod"] == "7776000s"


def test_only_the_repositorys_own_pipeline_is_let_in_and_only_its_branch_deploys(
    declared: Callable[..., Resources],
) -> None:
    resources = declared(branch="release")
    (provider,) = of(resources, "WorkloadIdentityPoolProvider").values()
    assert provider["attributeCondition"] == "assertion.repository == 'me/mine'"
    who = {name: inputs["member"] for name, inputs in of(resources, "IAMMember").items()}
    assert who["deployer-pipeline"].endswith("/attribute.deploys/me/mine@refs/heads/release")
    assert who["previewer-pipeline"].endswith("/attribute.repository/me/mine")


def test_gitlabs_tokens_name_things_otherwise(declared: Callable[..., Resources]) -> None:
    resources = declared(forge="gitlab", repository="group/sub/mine")
    (provider,) = of(resources, "WorkloadIdentityPoolProvider").values()
    assert provider["oidc"] == {"issuerUri": "https://gitlab.com"}
    assert provider["attributeCondition"] == "assertion.project_path == 'group/sub/mine'"
    member = of(resources, "IAMMember")["deployer-pipeline"]["member"]
    assert member.endswith("/attribute.deploys/group/sub/mine@branch/main")


def test_both_accounts_have_their_roles_in_every_project(
    declared: Callable[..., Resources],
) -> None:
    more = "roles/pubsub.admin"
    made = declared(projects=["project-a", "project-b"], deployerRoles=[more])
    grants = of(made, "IAMMember").values()
    for name, roles in (("deployer", (*DEPLOYER_ROLES, more)), ("previewer", PREVIEWER_ROLES)):
        member = f"serviceAccount:tpu-stack-ci-{name}@some-project.iam.gserviceaccount.com"
        for project in ("project-a", "project-b"):
            theirs = [each for each in grants if each["member"] == member]
            has = {each["role"] for each in theirs if each.get("project") == project}
            assert has == set(roles)


def test_a_budget_is_over_all_projects(declared: Callable[..., Resources]) -> None:
    assert of(declared(), "Budget") == {}
    budget = {"billingAccount": "012345-6789AB-CDEF01", "dollars": 500}
    (made,) = of(declared(projects=["project-a", "project-b"], budget=budget), "Budget").values()
    assert made["budgetFilter"]["projects"] == ["projects/123", "projects/123"]
    assert made["amount"]["specifiedAmount"]["units"] == "500"


def test_a_budget_is_asked_for_with_the_programs_own_credentials_in_its_projects_name(
    declared: Callable[..., Resources], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"gcp:accessToken": "a-token"}
    monkeypatch.setattr(
        pulumi.Config,
        "get_secret",
        lambda config, key: (
            pulumi.Output.secret(token[f"{config.name}:{key}"])
            if f"{config.name}:{key}" in token
            else None
        ),
    )
    budget = {"billingAccount": "012345-6789AB-CDEF01", "dollars": 500}
    (provider,) = of(declared(budget=budget), "gcp").values()
    assert provider["billingProject"] == "some-project"
    assert provider["userProjectOverride"] == "true"
    # Wrapped as a secret, so that the state has it encrypted.
    assert provider["accessToken"]["value"] == "a-token"
