from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml

from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack.ci import pipeline
from tpustack.ci.pipeline import PullRequests
from tpustack.errors import TpustackError, UsageError

KMS = {"secretsprovider": "gcpkms://a-key", "encryptedkey": "eA=="}
NOW = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
HOW = PullRequests(like="dev", project="requests", hours=2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "stacks").mkdir()
    config = {
        "gcp:project": "some-project",
        "tpu-stack:zone": "us-central1-b",
        "tpu-stack:namePrefix": "tpu-stack-dev",
        "tpu-stack:bucket": {"name": "precious", "protect": True},
    }
    text = yaml.safe_dump({"config": config, "encryptionsalt": "v1:x", **KMS})
    (tmp_path / "stacks/Pulumi.dev.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize("namespace", ["tpu-stack:", ""])
def test_a_requests_stack_is_like_another_with_names_of_its_own_and_keeps_nothing(
    root: Path, namespace: str
) -> None:
    path = root / "stacks/Pulumi.dev.yaml"
    path.write_text(path.read_text().replace("tpu-stack:", namespace))
    assert pipeline.write_request_stack(root, 7, HOW) == "pr-7"
    document = yaml.safe_load((root / "stacks/Pulumi.pr-7.yaml").read_text())
    assert document["encryptionsalt"] == "v1:x"
    made = parse(document["config"], "pr-7")
    assert made.project == "requests"
    assert not document.keys() & {"secretsprovider", "encryptedkey"}
    assert made.name_prefix is None
    assert made.bucket.name is None
    assert made.bucket.force_destroy
    assert made.bucket.soft_delete_days == 0
    assert not made.bucket.protect
    assert made.labels == {"request": "pr-7"}


def test_a_requests_stack_keeps_a_pattern_of_names_and_whose_they_are(root: Path) -> None:
    path = root / "stacks/Pulumi.dev.yaml"
    document = yaml.safe_load(path.read_text())
    del document["config"]["tpu-stack:namePrefix"]
    document["config"] |= {
        "tpu-stack:namePattern": "acme-{owner}-{stack}-{name}",
        "tpu-stack:owner": "ada",
    }
    path.write_text(yaml.safe_dump(document))
    pipeline.write_request_stack(root, 7, HOW)
    config = yaml.safe_load((root / "stacks/Pulumi.pr-7.yaml").read_text())["config"]
    names = names_of(parse(config, "pr-7"), "pr-7")
    assert (names.vm, names.bucket) == ("acme-ada-pr-7-vm", "acme-ada-pr-7-data")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (None, "no pullRequests"),
        (PullRequests(like="nosuch", project="requests"), "has no file Pulumi.nosuch.yaml"),
    ],
)
def test_pull_requests_like_must_name_a_stack(
    root: Path, how: PullRequests | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        pipeline.write_request_stack(root, 7, how)


@pytest.mark.parametrize(
    ("branches", "later", "why"),
    [
        ({"main", "work"}, timedelta(hours=1), ""),
        ({"main", "work"}, timedelta(hours=3), "Its lifetime ended"),
        ({"main"}, timedelta(hours=1), "Its branch `work` was deleted"),
    ],
)
def test_a_requests_stack_goes_with_its_branch_or_when_its_time_is_up(
    branches: set[str], later: timedelta, why: str
) -> None:
    tags = pipeline.request_tags("work", HOW, NOW)
    reason = pipeline.reason_to_sweep(tags, branches, NOW + later)
    assert reason.startswith(why)
    assert bool(reason) == bool(why)


def test_a_stack_without_tags_is_swept() -> None:
    assert "failed" in pipeline.reason_to_sweep({}, {"main"}, NOW)


@pytest.mark.parametrize("expires", ["", "soon", "2026-13-45", "[]"])
def test_an_invalid_expiry_is_reported_and_the_stack_kept(expires: str) -> None:
    damaged = {pipeline.BRANCH: "work", pipeline.EXPIRES: expires}
    with pytest.raises(TpustackError, match=r"which isn't a time, so the stack stays"):
        pipeline.reason_to_sweep(damaged, {"work"}, NOW)
    naive = {**damaged, pipeline.EXPIRES: "2020-01-01T00:00:00"}
    assert pipeline.reason_to_sweep(naive, {"work"}, NOW).startswith("Its lifetime ended")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("stacks: []", "stacks: Tuple should have at least 1 item"),
        ("stacks: [dev]\npullRequests: {like: dev, hours: 0}", "pullRequests.hours"),
        ("stacks: [dev]\npullRequests: {like: dev}", "pullRequests.project: Field required"),
        ("stacks: [dev]\nstages: 1", "stages: Extra inputs are not permitted"),
        ("stacks: [", "is not valid YAML"),
        ("", "the file: Input should be"),
    ],
)
def test_wrong_settings_of_the_pipeline_are_named(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/pipeline.yaml").write_text(text)
    with pytest.raises(UsageError, match=why):
        pipeline.load_pipeline(tmp_path)


def test_requests_do_not_share_a_project_with_any_stack(root: Path) -> None:
    (root / "stacks/Pulumi.broken.yaml").write_text("config: [")
    (root / "stacks/Pulumi.pr-1.yaml").write_text("config: {'gcp:project': requests}")
    file = root / "stacks/pipeline.yaml"
    for project in ("some-project", "requests"):
        text = f"stacks: [prod]\npullRequests: {{like: dev, project: {project}}}"
        file.write_text(text)
        if project == "requests":
            assert pipeline.load_pipeline(root).pull_requests
            continue
        # It need not be in the pipeline's list.
        with pytest.raises(UsageError, match="'some-project' is also the project of dev"):
            pipeline.load_pipeline(root)


def test_a_project_without_settings_of_its_pipeline_is_told_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stacks: \[dev, prod\]"):
        pipeline.load_pipeline(tmp_path)
