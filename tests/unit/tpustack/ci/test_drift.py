"""Drift tells what is off, and what the stack's own limits have turned off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tpustack.ci import drift
from tpustack.ci.result import Outcome, Run
from tpustack.cloud.google import Google
from tpustack.engine.stack import Change
from tpustack.errors import TpustackError

VM, TPU = "gcp:compute/instance:Instance", "gcp:tpu/v2Vm:V2Vm"
OFF = Change("update", VM, "instance", ("currentStatus: TERMINATED",))
IDLE = Change("update", TPU, "tpu", ("state: STOPPED",))
LABEL = Change("update", VM, "instance", ("labels.team",))


def job(tmp_path: Path, events: Any, **settings: Any) -> Run:
    (tmp_path / "stacks").mkdir()
    config = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-b", **settings}
    text = yaml.safe_dump({"config": config})
    (tmp_path / "stacks" / "Pulumi.dev.yaml").write_text(text, encoding="utf-8")
    done = SimpleNamespace(failure="", events=events)
    stack = SimpleNamespace(drift=lambda line: done, resources=lambda: RESOURCES)
    backend = SimpleNamespace(stacks=lambda: {"dev": None}, stack=lambda name: stack)
    fake = SimpleNamespace(backend=backend, root=tmp_path, line=lambda name: print)
    return cast(Run, fake)


def grant(kind: str, on: str, role: str, member: str) -> dict[str, Any]:
    name = {"bucket": "bucketIAMMember:BucketIAMMember", "project": "iAMMember:IAMMember"}[kind]
    room = {"bucket": "storage", "project": "projects"}[kind]
    outputs = {kind: on, "role": role, "member": member}
    return {"type": f"gcp:{room}/{name}", "urn": "urn:p:dev::p::t::grant", "outputs": outputs}


OURS = "serviceAccount:tpu-stack-dev@some-project.iam.gserviceaccount.com"
THEIRS = "serviceAccount:x@evil.iam.gserviceaccount.com"
BUCKET = "gcp:storage/bucket:Bucket"
RESOURCES = [
    {"type": BUCKET, "urn": "urn:p:dev::p::t::data", "outputs": {"name": "data"}},
    grant("bucket", "b/data", "roles/storage.objectUser", OURS),
    grant("project", "some-project", "roles/logging.logWriter", OURS),
]


class Policies:
    """The policies that Google has."""

    def __init__(self, *, bucket: dict[str, list[str]], project: dict[str, list[str]]) -> None:
        self.bucket, self.project = bucket, project

    def get(self, url: str, parameters: object) -> Any:
        assert url == "https://storage.googleapis.com/storage/v1/b/data/iam"
        return self.of(self.bucket)

    def post(self, url: str, body: object) -> Any:
        assert url.endswith("/projects/some-project:getIamPolicy")
        return self.of(self.project)

    def of(self, grants: dict[str, list[str]]) -> Any:
        return {"bindings": [{"role": role, "members": who} for role, who in grants.items()]}


def compared(of: Run, **more: str) -> Any:
    """The drift of stack dev, where somebody has granted more."""
    bucket = {
        "roles/storage.legacyBucketOwner": ["projectOwner:some-project"],
        "roles/storage.objectUser": [OURS, *([more["bucket"]] if "bucket" in more else [])],
    }
    project = {"roles/owner": ["user:grace@example.com"], "roles/logging.logWriter": [OURS]}
    if "project" in more:
        project["roles/logging.logWriter"].append(more["project"])
    policies = Policies(bucket=bucket, project=project)
    (found,) = drift.drift(of, ["dev"], lambda: cast(Google, policies))
    return found


@pytest.mark.parametrize("whom", [THEIRS, "user:ada@evil.example", "projectEditor:evil"])
def test_a_grant_on_a_stacks_own_bucket_that_no_state_has_is_drift(
    tmp_path: Path, whom: str
) -> None:
    found = compared(job(tmp_path, events((), ())), bucket=whom)
    said = (f"IAM: roles/storage.objectUser to {whom}",)
    assert (found.outcome, found.changes) == (
        Outcome.DRIFT,
        (Change("update", BUCKET, "data", said),),
    )
    assert "remove it from the bucket's policy" in found.notes[0]
    # Another stack of the project shares the bucket.
    shares = OURS.replace("tpu-stack-dev", "tpu-stack-ada")
    (tmp_path / "shared").mkdir()
    assert compared(job(tmp_path / "shared", events((), ())), bucket=shares).changes == ()


def test_foreign_grants_of_the_stacks_own_project_roles_are_reported(
    tmp_path: Path,
) -> None:
    of = job(tmp_path, events((), ()))
    found = compared(of, project=THEIRS)
    assert (found.outcome, found.changes) == (Outcome.NO_CHANGE, ())
    assert found.notes[0].endswith(f": roles/logging.logWriter to {THEIRS}")
    assert compared(of).notes == (drift._UNSEEN,)


def test_drift_is_found_even_if_iam_policies_cannot_be_read(
    tmp_path: Path,
) -> None:
    def refused() -> Google:
        raise TpustackError("no Google credentials")

    (found,) = drift.drift(job(tmp_path, events((LABEL,), ())), ["dev"], refused)
    assert found.outcome is Outcome.DRIFT
    assert "couldn't be compared with the state: no Google credentials" in found.notes[1]


def events(changes: tuple[Change, ...], noticed: tuple[Change, ...]) -> Any:
    return SimpleNamespace(changes=changes, noticed=noticed)


@pytest.mark.parametrize("noticed", [OFF, IDLE])
def test_stopped_machines_are_drift_that_a_deployment_does_not_undo(
    tmp_path: Path, noticed: Change
) -> None:
    found = compared(job(tmp_path, events((), (noticed,))))
    assert (found.outcome, found.changes) == (Outcome.DRIFT, (noticed,))
    assert "Revert it" not in found.notes[0]
    assert f"Changed manually: {noticed.name} ({noticed.properties[0]})" in found.notes[0]


def test_a_resource_with_both_is_named_once(tmp_path: Path) -> None:
    found = compared(job(tmp_path, events((LABEL,), (OFF,))))
    (change,) = found.changes
    assert change.properties == ("labels.team", "currentStatus: TERMINATED")
    assert len(found.notes) == 3


@pytest.mark.parametrize(
    ("pipeline", "command"),
    [
        ("stacks: [dev]\n", "tpustack ci deploy"),
        ("stacks: [prod]\n", "pulumi up"),
        (None, "pulumi up"),
    ],
)
def test_the_way_back_is_a_command_that_takes_the_stack(
    tmp_path: Path, pipeline: str | None, command: str
) -> None:
    of = job(tmp_path, events((LABEL,), ()))
    if pipeline:
        (tmp_path / "stacks" / "pipeline.yaml").write_text(pipeline, encoding="utf-8")
    found = compared(of)
    assert found.notes[0].startswith(f"Revert it with `{command} --refresh --stack dev`, or")


def test_a_tpu_that_the_idle_limit_stopped_is_no_drift(tmp_path: Path) -> None:
    limits = {"tpu-stack:limits": {"idleMinutes": 30}}
    found = compared(job(tmp_path, events((), (IDLE,)), **limits))
    assert found.outcome is Outcome.NO_CHANGE


def test_without_drift_the_result_says_what_was_not_looked_at(tmp_path: Path) -> None:
    found = compared(job(tmp_path, events((), ())))
    assert found.outcome is Outcome.NO_CHANGE
    assert "grants on accounts" in found.notes[0]
