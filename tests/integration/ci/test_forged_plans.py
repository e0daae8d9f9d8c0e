"""Plans that someone else made, or that were made for something else, with the real engine."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from tests.integration.ci.conftest import OUTPUT, SMALL, Checkout, MakeCheckout
from tests.integration.ci.test_kills import end_all
from tpustack.ci.deployment import UNKNOWN
from tpustack.local import LocalCloudCommand

NO_CHANGE, FAILURE, CHANGES = 0, 1, 3
# The content of the objects is a secret.
SECRET = SMALL.replace(
    '"content": stack', '"content": pulumi.Output.secret("hidden " + labels["team"])'
)


@pytest.fixture
def clone(checkout: MakeCheckout) -> Checkout:
    made = checkout("dev", small=True)
    (made.path / "small" / "__main__.py").write_text(SECRET, encoding="utf-8")
    merge(made, "vision")
    return made


def merge(clone: Checkout, team: str, **labels: str) -> None:
    """Commits what makes another secret."""
    path = clone.path / "stacks/Pulumi.dev.yaml"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))["config"]
    labels = {**config.get("tpu-stack:labels", {}), "team": team, **labels}
    clone.settings("dev", labels=labels)
    clone.git("commit", "--quiet", "--all", f"--message={team}")


def review(clone: Checkout, folder: str) -> None:
    """Keeps the plan of what is checked out."""
    summary = clone.path / "build" / "summary.md"
    done = clone.ci("preview", "--stack", "dev", GITHUB_STEP_SUMMARY=str(summary))
    assert done.code == CHANGES, done.said
    # This is what those see who approve the deployment.
    assert summary.read_text(encoding="utf-8").endswith(clone.text("dev"))
    shutil.copytree(clone.path / OUTPUT, clone.path / folder)


def deploy(clone: Checkout, folder: str) -> tuple[int, str]:
    code = clone.ci("deploy", "--stack", "dev", "--plans", folder).code
    return code, clone.text("dev")


def test_only_what_was_reviewed_of_this_commit_and_state_is_deployed(
    clone: Checkout, cloud: LocalCloudCommand
) -> None:
    review(clone, "build/first")
    plan = clone.path / "build/first/dev.plan.json"
    assert "hidden" not in plan.read_text(encoding="utf-8")
    before = cloud.status()["resources"]

    # As the engine writes it, and with all that matters unknown.
    forged = json.loads(plan.read_text(encoding="utf-8"))
    for each in forged["resourcePlans"].values():
        each["goal"]["inputDiff"] = UNKNOWN
    (clone.path / "build/forged").mkdir()
    kept = clone.path / "build/forged/dev.plan.json"
    kept.write_text(json.dumps(forged), encoding="utf-8")
    code, said = deploy(clone, "build/forged")
    assert (code, "but with other " in said) == (FAILURE, True), said
    del forged["tpu-stack"]
    kept.write_text(json.dumps(forged), encoding="utf-8")
    code, said = deploy(clone, "build/forged")
    assert (code, "isn't a plan of `tpustack ci preview`" in said) == (FAILURE, True), said

    # Not the commit that was reviewed, though all that is public of it is the same.
    clone.git("commit", "--quiet", "--allow-empty", "--message=another")
    code, said = deploy(clone, "build/first")
    assert (code, "it is for commit" in said) == (FAILURE, True), said
    clone.git("reset", "--quiet", "--hard", "HEAD~")
    assert cloud.status()["resources"] == before

    # Killed in the middle, and taken up with the plan that was reviewed.
    cloud.run("faults", "add", "storage.objects.insert")
    run = clone.start("deploy", "--stack", "dev", "--plans", "build/first")
    assert run.stdout is not None
    assert any("bucket-0 created" in line for line in run.stdout)
    end_all(run.pid)
    run.stdout.close()
    run.wait()
    cloud.run("faults", "clear")
    code, said = deploy(clone, "build/first")
    assert code == CHANGES, said

    # Another secret, in a plan that is otherwise word for word the reviewed one.
    merge(clone, "audio")
    review(clone, "build/second")
    merged = clone.ci("preview", "--stack", "dev", "--reviewed", "build/second")
    assert merged.code == CHANGES, merged.said
    path = clone.path / "small/__main__.py"
    path.write_text(SECRET.replace('labels["team"]', '"theirs"'), encoding="utf-8")
    code, said = deploy(clone, "build/second")
    assert (code, "but with other content" in said) == (FAILURE, True), said
    beyond = clone.ci("preview", "--stack", "dev", "--reviewed", "build/second")
    assert (beyond.code, "but with other content" in clone.text("dev")) == (FAILURE, True)
    assert not (clone.path / OUTPUT / "dev.plan.json").exists()
    clone.git("checkout", "--quiet", "small")

    # Someone else deploys while the approval is waited for.
    assert clone.ci("deploy", "--stack", "dev").code == CHANGES
    code, said = deploy(clone, "build/second")
    assert (code, "something else was deployed since" in said) == (FAILURE, True), said
