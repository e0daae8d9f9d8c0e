"""`tpustack migrate`: a stack of TPU VMs as a machine of Compute Engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.tpustack.conftest import Run
from tpu_infra.catalog import Catalog
from tpustack import stacks

V6E: dict[str, Any] = {
    "gcp:project": "our-tpus",
    "tpu-stack:zone": "us-east5-a",
    "tpu-stack:tpu": {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6",
        "capacity": "spot",
        "queued": {"waitMinutes": 120},
    },
    "tpu-stack:recovery": {"enabled": True},
    "tpu-stack:limits": {"idleMinutes": 60},
    "tpu-stack:vm": {"machineType": "n2-standard-4"},
    "tpu-stack:labels": {"team": "vision"},
}
V5P = {"acceleratorType": "v5p-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt"}


def write(project: Path, **changes: Any) -> Path:
    config = {**V6E, **{f"tpu-stack:{name}": value for name, value in changes.items()}}
    path = project / "stacks" / "Pulumi.old.yaml"
    kept = {name: value for name, value in config.items() if value is not None}
    path.write_text(yaml.safe_dump({"encryptionsalt": "v1:x", "config": kept}), encoding="utf-8")
    return path


def test_a_stack_gets_its_machine_and_keeps_what_compute_engine_has(
    run: Run, project: Path
) -> None:
    path = write(project)
    before = path.read_text(encoding="utf-8")
    done = run("migrate", "old")
    assert done.code == 0, done.err
    assert yaml.safe_load(done.out) == {
        "encryptionsalt": "v1:x",
        "config": {
            "gcp:project": "our-tpus",
            "tpu-stack:architecture": "compute",
            "tpu-stack:labels": {"team": "vision"},
            "tpu-stack:recovery": {"enabled": True},
            "tpu-stack:tpu": {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"},
            "tpu-stack:training": {"runOn": "tpu", "tensorflowVersion": "2.18.0"},
            "tpu-stack:vm": {"machineType": "n2-standard-4"},
            "tpu-stack:zone": "us-east5-a",
        },
    }
    assert path.read_text(encoding="utf-8") == before


def test_the_comments_say_what_changes_what_to_delete_and_what_stays(
    run: Run, project: Path
) -> None:
    write(project)
    comments = [line for line in run("migrate", "old").out.splitlines() if line.startswith("#")]
    said = " ".join(line.removeprefix("#").strip() for line in comments)
    for left in ("tpu.queued.waitMinutes", "tpu.runtimeVersion", "limits.idleMinutes"):
        assert f"Left out: {left} " in said
    assert "the VM only recreates a preempted TPU" in said
    assert "Price: $" in said
    assert "not Google's word" in said
    assert "--target '**:QueuedResource::**' --target '**:Instance::**'" in said
    assert "The bucket stays" in said


def test_a_stack_that_google_recovers_has_no_vm_afterwards(run: Run, project: Path) -> None:
    write(project, tpu=V5P, zone="us-central1-a")
    done = run("migrate", "old")
    assert not {"tpu-stack:vm", "tpu-stack:recovery"} & {*yaml.safe_load(done.out)["config"]}
    said = " ".join(done.out.split("\n#   "))
    assert "Left out: vm " in said
    assert "Left out: recovery.enabled is not available for this stack" in said


def test_comments_fit_a_terminal(run: Run, project: Path) -> None:
    write(project)
    comments = [line for line in run("migrate", "old").out.splitlines() if line.startswith("#")]
    assert max(map(len, comments)) <= 80


@pytest.mark.parametrize(
    ("tpu", "zone", "host"),
    [
        ("v5p-8", "us-central1-a", "ct5p-hightpu-4t"),
        ("v6e-1", "us-east5-a", "ct6e-standard-1t"),
        ("v6e-8", "us-east5-a", "ct6e-standard-8t"),
    ],
)
def test_a_tpu_becomes_the_machine_with_its_chips_and_the_result_passes_every_check(
    tpu: str, zone: str, host: str, run: Run, project: Path
) -> None:
    chosen = V5P if tpu == "v5p-8" else {**V6E["tpu-stack:tpu"], "acceleratorType": tpu}
    path = write(project, tpu=chosen, zone=zone)
    found = yaml.safe_load(run("migrate", "old").out)
    assert found["config"]["tpu-stack:tpu"]["acceleratorType"] == host
    path.write_text(yaml.safe_dump(found), encoding="utf-8")
    assert stacks.check("old", Catalog()).problems == ()


def test_a_plain_tpu_vm_and_a_group_are_deleted_by_their_own_names(run: Run, project: Path) -> None:
    write(project, tpu=V5P, zone="us-central1-a", vm={"instanceGroup": {}})
    notes = " ".join(run("migrate", "old").out.split("\n#   "))
    assert "--target '**:V2Vm::**' --target '**:InstanceGroupManager::**'" in notes


def test_a_wheel_that_is_not_built_yet_is_not_needed(run: Run, project: Path) -> None:
    write(project)
    for wheel in (project / "dist").iterdir():
        wheel.unlink()
    assert run("migrate", "old").code == 0


POD = {"runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"tpu": {**V5P, "acceleratorType": "v5p-32"}, "zone": "us-central1-a"},
            'tpu.acceleratorType: "v5p-32" is not a TPU VM that is one machine',
        ),
        (
            {"tpu": {**POD, "acceleratorType": "v5litepod-8"}, "zone": "us-central1-a"},
            'tpu.acceleratorType: "v5litepod-8" is not a TPU VM that is one machine',
        ),
        (
            {
                "tpu": {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"},
                "zone": "us-central1-b",
                "architecture": "node",
                "recovery": None,
            },
            'tpu.acceleratorType: "v2-8" is not a TPU VM that is one machine',
        ),
        ({"tpu": {**V5P, "slices": 2}, "zone": "us-central1-a"}, "tpu.slices: 2 "),
        (
            {
                "tpu": {**V5P, "dataDisks": [{"name": "corpus", "sizeGib": 100}]},
                "zone": "us-central1-a",
            },
            "tpu.dataDisks: ",
        ),
        ({"tpu": {**V5P, "capacity": "preemptible"}, "zone": "us-central1-a"}, "tpu.capacity: "),
    ],
)
def test_what_compute_engine_does_not_have_is_refused_with_one_message(
    changes: dict[str, Any], message: str, run: Run, project: Path
) -> None:
    write(project, **changes)
    done = run("migrate", "old")
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith(f"error: {message}")
    assert len(done.err.splitlines()) == 1
