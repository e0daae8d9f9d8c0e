"""docs/ci-cd.md from the start: bootstrap, the first deployment, and the pipeline's identities."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.integration.ci.conftest import Checkout, MakeCheckout, make_project
from tpustack.local import LocalCloudCommand
from tpustack.project import root

NO_CHANGE, FAILURE, CHANGES = 0, 1, 3
SCOPES = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
PAGE = (root() / "docs" / "ci-cd.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^ *```sh\n(.*?)^ *```", PAGE, re.DOTALL | re.M)
BOOTSTRAP, FIRST_DEPLOYMENT = SCRIPTS[:2]
(TAKE_DOWN,) = (script for script in SCRIPTS if "pulumi destroy" in script)
PROJECTS = {"dev": "a-project-dev", "prod": "a-project-prod"}
SETTINGS = {
    "gcp:project": "tpu-stack-local",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
    "tpu-stack-bootstrap:repositoryId": 74,
    "tpu-stack-bootstrap:ownerId": 65,
    "tpu-stack-bootstrap:environments": {name: {"project": it} for name, it in PROJECTS.items()},
}
STATE = "tpu-stack-local-tpu-stack-ci-state"
IAM = "https://iam.googleapis.com/v1"
PROJECTS_API = "https://cloudresourcemanager.googleapis.com/v1/projects"


@pytest.fixture
def clone(checkout: MakeCheckout, google: requests.Session, tmp_path: Path) -> Checkout:
    """A clone whose user has `tpustack` on PATH, with a stack in each of two projects."""
    made = checkout(*PROJECTS, small=True)
    for stack, project in PROJECTS.items():
        make_project(google, project)
        limits = {"timeToLiveHours": 12, "role": "tpu_stack_limits"}
        made.settings(stack, limits=limits, bucket={"forceDestroy": True})
        path = made.path / "stacks" / f"Pulumi.{stack}.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["config"]["gcp:project"] = project
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    file = made.path / "bootstrap" / "Pulumi.pipeline.yaml"
    file.write_text(yaml.safe_dump({"config": SETTINGS}), encoding="utf-8")
    command = tmp_path / "bin" / "tpustack"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{made.python}" -m tpustack "$@"\n')
    command.chmod(0o755)
    found = f"{command.parent}:{made.environment['PATH']}"
    return replace(made, environment={**made.environment, "PATH": found})


def shell(clone: Checkout, script: str) -> str:
    """Runs a script of the page; what its last command ends with counts."""
    script = script.replace("MY-PROJECT", "tpu-stack-local")
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=clone.path,
        env=clone.variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_state(cloud: LocalCloudCommand) -> dict[str, int]:
    """How many resources of each kind there are; the state, and what agents write, is objects."""
    resources: dict[str, int] = cloud.status()["resources"]
    return {kind: count for kind, count in resources.items() if kind != "objects"}


def attacks(pipeline: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """What a commit that runs as dev's deployer might try: verb, address, body."""
    prod, account = PROJECTS["prod"], "https://iamcredentials.googleapis.com/v1/projects/-"
    storage, compute = "https://storage.googleapis.com", "https://compute.googleapis.com/compute/v1"
    key = pipeline["environments"]["prod"]["secrets_provider"].removeprefix("gcpkms://")
    other = pipeline["environments"]["prod"]["deployer"]
    mine = f"serviceAccount:{pipeline['environments']['dev']['deployer']}"
    owner = {"role": "roles/owner", "members": [mine, "user:developer@tpu-stack.local"]}
    owned = {"policy": {"bindings": [owner]}}
    return [
        ("POST", f"{account}/serviceAccounts/{other}:generateAccessToken", SCOPES),
        ("POST", f"{IAM}/projects/-/serviceAccounts/{other}:setIamPolicy", {"policy": {}}),
        ("GET", f"{storage}/storage/v1/b/{STATE}-prod/o", {}),
        ("POST", f"{storage}/upload/storage/v1/b/{STATE}-prod/o?uploadType=media&name=x", {}),
        # Bootstrap's own state, which says what its owner's next run makes.
        ("GET", f"{storage}/storage/v1/b/{STATE}/o", {}),
        ("POST", f"{storage}/upload/storage/v1/b/{STATE}/o?uploadType=media&name=x", {}),
        ("POST", f"https://cloudkms.googleapis.com/v1/{key}:decrypt", {"ciphertext": "eA=="}),
        ("GET", f"{compute}/projects/{prod}/zones/us-central1-a/instances/tpu-stack-prod-vm", {}),
        ("POST", f"{compute}/projects/{prod}/global/networks", {"name": "n"}),
        ("POST", f"{PROJECTS_API}/{prod}:setIamPolicy", owned),
        ("POST", f"{PROJECTS_API}/tpu-stack-local:setIamPolicy", owned),
        # In its own project it grants the roles of its stack, and writes no role.
        ("POST", f"{PROJECTS_API}/{PROJECTS['dev']}:setIamPolicy", owned),
        ("POST", f"{IAM}/projects/{PROJECTS['dev']}/roles", {"roleId": "mine", "role": {}}),
        ("PATCH", f"{IAM}/projects/{PROJECTS['dev']}/roles/tpu_stack_limits", {"title": "mine"}),
        ("PATCH", f"{IAM}/projects/{PROJECTS['dev']}/roles/tpu_stack_ci_deployer", {"title": "m"}),
    ]


def test_the_page_leads_to_a_pipeline_whose_identities_reach_their_own_environment_alone(
    clone: Checkout, google: requests.Session, cloud: LocalCloudCommand
) -> None:
    said = shell(clone, BOOTSTRAP)
    pipeline = json.loads(dict(line.split(": ", 1) for line in said.splitlines()[1:])["pipeline"])
    assert (pipeline["deployed"], pipeline["planned"]) == (["dev", "prod"], ["dev", "prod"])
    assert pipeline["limited"] == ["dev", "prod"]
    made = without_state(cloud)
    # The second run finds its state in the bucket that the first one made.
    assert shell(clone, BOOTSTRAP).startswith("nothing changed\n")
    assert without_state(cloud) == made
    first = shell(clone, FIRST_DEPLOYMENT)
    assert first.splitlines() == ["dev: changes", "dev: changes", "dev: no change"]

    def token(environment: str, account: str) -> str:
        email = pipeline["environments"][environment][account]
        url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{email}"
        return str(google.post(f"{url}:generateAccessToken", json=SCOPES).json()["accessToken"])

    def as_account(account: str, backend: str = "dev") -> dict[str, str]:
        url = pipeline["environments"][backend]["backend_url"]
        return {"GOOGLE_OAUTH_ACCESS_TOKEN": token("dev", account), "PULUMI_BACKEND_URL": url}

    previewer, deployer = as_account("previewer"), as_account("deployer")
    before = without_state(cloud)
    clone.settings("dev", labels={"team": "vision", "buckets": "3"})
    # To read is enough for all of a preview and for the search for drift …
    previewed = clone.ci("preview", "--refresh", "--stack", "dev", **previewer)
    assert previewed.code == CHANGES, previewed.said
    assert clone.ci("drift", "--stack", "dev", **previewer).code == NO_CHANGE
    # … and for nothing else.
    refused = clone.ci("deploy", "--stack", "dev", **previewer)
    assert refused.code == FAILURE, refused.said
    assert "storage.objects.create" in clone.text("dev")
    assert without_state(cloud) == before
    deployed = clone.ci("deploy", "--stack", "dev", **deployer)
    assert deployed.code == CHANGES, deployed.said

    # A merged commit that runs in dev's job is dev's deployer, and has no role in prod.
    before = without_state(cloud)
    for backend in PROJECTS:
        refused = clone.ci("deploy", "--stack", "prod", **as_account("deployer", backend))
        assert refused.code == FAILURE, refused.said
    google.headers["Authorization"] = f"Bearer {token('dev', 'deployer')}"
    tried = {
        f"{verb} {url}": google.request(verb, url, json=body or None).status_code
        for verb, url, body in attacks(pipeline)
    }
    assert set(tried.values()) == {403}, tried
    assert without_state(cloud) == before


def test_a_pipeline_that_was_taken_down_is_made_again_at_once(
    clone: Checkout, google: requests.Session, cloud: LocalCloudCommand
) -> None:
    def pipeline() -> dict[str, Any]:
        said = shell(clone, BOOTSTRAP).splitlines()
        loaded: dict[str, Any] = json.loads(said[-1].removeprefix("pipeline: "))
        return loaded

    first, made = pipeline(), without_state(cloud)
    shell(clone, TAKE_DOWN)
    protected = ("buckets", "kms key versions")
    assert without_state(cloud) == {kind: made[kind] for kind in protected}
    again = pipeline()
    assert again["environments"] == first["environments"]
    # Google keeps the pool's id for a month.
    assert again["deploy_provider"] != first["deploy_provider"]
    assert without_state(cloud) == made
    # The roles are there, with what the machines need.
    role = f"{IAM}/projects/{PROJECTS['dev']}/roles/tpu_stack_limits"
    assert google.get(role).json()["includedPermissions"]
    assert shell(clone, BOOTSTRAP).startswith("nothing changed\n")
