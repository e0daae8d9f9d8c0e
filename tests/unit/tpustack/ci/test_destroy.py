"""The pipeline destroys no data by the way, and no stack that is not its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tpustack.ci import sweep
from tpustack.ci.command import command
from tpustack.ci.result import Outcome, Result, Run
from tpustack.errors import UsageError

BUCKET = {"type": "gcp:storage/bucket:Bucket", "urn": "urn:x::bucket"}
FULL = {**BUCKET, "outputs": {"name": "data", "forceDestroy": True}}


def destroyed(
    monkeypatch: pytest.MonkeyPatch, *resources: dict[str, Any], delete_data: bool = False
) -> Result:
    """Destroy a stack with these resources; what the engine does is said to have succeeded."""
    monkeypatch.setattr(sweep, "_remove_stack", lambda job, stack: Result(stack, Outcome.CHANGES))
    engine = SimpleNamespace(resources=lambda: list(resources))
    backend = SimpleNamespace(stacks=lambda: {"prod": None}, stack=lambda name: engine)
    job = cast(Run, SimpleNamespace(backend=backend))
    return sweep.destroy(job, "prod", delete_data=delete_data)


def test_destroy_refuses_to_delete_a_bucket_with_its_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = destroyed(monkeypatch, FULL)
    assert result.outcome is Outcome.FAILURE
    assert result.problem.startswith("bucket data: with forceDestroy and without protection")
    assert "--delete-data" in result.problem


@pytest.mark.parametrize(
    "kept",
    [
        {**FULL, "protect": True},
        {**FULL, "retainOnDelete": True},
        {**BUCKET, "outputs": {"name": "data", "forceDestroy": False}},
        {**BUCKET, "outputs": None},
        {**FULL, "type": "gcp:compute/disk:Disk"},
    ],
)
def test_destroy_accepts_buckets_whose_objects_are_safe(
    monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any]
) -> None:
    assert destroyed(monkeypatch, kept).outcome is Outcome.CHANGES


def test_delete_data_allows_deleting_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    assert destroyed(monkeypatch, FULL, delete_data=True).outcome is Outcome.CHANGES


@pytest.mark.parametrize("stack", ["dev-ada", "PROD", "pr-x"])
def test_a_stack_that_the_pipeline_does_not_list_is_not_destroyed(stack: str) -> None:
    # Its environment would be made on the spot, and ask nobody.
    done = CliRunner().invoke(command, ["destroy", "--stack", stack, "--confirm", stack])
    assert isinstance(done.exception, UsageError)
    assert f"the pipeline doesn't deploy {stack}" in str(done.exception)
