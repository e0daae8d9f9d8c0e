"""What the stack makes carries its mark, which says of which backend the stack is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run, config

POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
DISK = {"name": "cache", "sizeGib": 100}
# Named by the settings alone; the rest waits for one of these, or gets its name from Google.
MARKED = {
    *("Account", "Bucket", "Disk", "HealthCheck", "Instance", "InstanceTemplate", "Network"),
    *("QueuedResource", "V2Vm"),
}
FORMS: list[dict[str, Any]] = [
    {"tpu": {**POD, "dataDisks": [DISK]}, "vm": {"keepBootDisk": True}},
    {"tpu": {**POD, "queued": {}}, "vm": {"instanceGroup": {}}},
]


def marks(run: Run, **settings: Any) -> dict[str, str]:
    """The mark of each resource that has one, by its type."""
    engine, _ = run(config(**settings))
    found = {}
    for each in engine.resources:
        label = each.inputs.get("labels", {}).get("tpu-stack-mark")
        words = each.inputs.get("description", "").split()
        if label or words[:3] == ["Made", "by", "tpu-stack"]:
            found[each.kind.rpartition(":")[2]] = label or words[-1].strip("()")
    return found


def test_whatever_another_stack_could_have_made_under_the_same_name_is_marked(run: Run) -> None:
    found = [marks(run, **form) for form in FORMS]
    assert found[0].keys() | found[1].keys() == MARKED
    assert len({mark for form in found for mark in form.values()}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("gs://ours", "gs://theirs"), ("file:///home/ada", "file:///home/grace")],
)
def test_stacks_of_one_name_in_two_backends_have_two_marks(
    run: Run, monkeypatch: pytest.MonkeyPatch, one: str, other: str
) -> None:
    found = []
    for backend in (one, one, other):
        monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
        found.append(marks(run)["Bucket"])
    assert found[0] == found[1] != found[2]


def test_two_people_have_two_marks_in_folders_of_one_name_and_one_mark_in_a_bucket(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mark(person: str, backend: str) -> str:
        monkeypatch.setenv("LOGNAME", person)
        monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
        return marks(run)["Bucket"]

    assert mark("ada", "file://~") != mark("grace", "file://~")
    assert mark("ada", "gs://ours") == mark("grace", "gs://ours")


def test_the_backend_that_the_engine_logged_in_to_counts_where_no_variable_says_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://ours")
    said = marks(run)["Bucket"]
    monkeypatch.delenv("PULUMI_BACKEND_URL")
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    unknown = marks(run)["Bucket"]
    (tmp_path / "credentials.json").write_text(json.dumps({"current": "gs://ours"}))
    assert unknown != marks(run)["Bucket"] == said
