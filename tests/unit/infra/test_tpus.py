"""What the program declares of TPUs beyond one plain TPU VM, with an engine that only records."""

from __future__ import annotations

from typing import Any

import pytest

from tpu_infra.components.machine import custom_timeouts
from tpu_infra.settings.machines import TimeoutSettings

from .conftest import Run, config

POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
ON_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-se"}
V6E = {"acceleratorType": "v6e-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"}
ZONE = "projects/some-project/zones/us-central1-b"
SNAPSHOT = "projects/some-project/global/snapshots/corpus"
NAMES = ["tpu-stack-test-tpu-0", "tpu-stack-test-tpu-1", "tpu-stack-test-tpu-2"]


def asked(run: Run, **tpu: Any) -> dict[str, Any]:
    """What is asked of the queue."""
    engine, _ = run(config(tpu={**POD, "queued": {}, **tpu}))
    request: dict[str, Any] = engine.dynamic("QueuedResource")["request"]
    return request


def test_several_slices_are_as_many_tpu_vms_with_all_endpoints_slice_by_slice(run: Run) -> None:
    engine, outputs = run(config(tpu={**POD, "slices": 3}), hosts=2)
    assert [vm.inputs["name"] for vm in engine.of("V2Vm")] == NAMES
    assert outputs["tpu_names"] == NAMES
    assert outputs["tpu_name"] == NAMES[0]
    of_a_slice = ["grpc://10.10.0.2:8470", "grpc://10.10.0.3:8470"]
    assert outputs["tpu_endpoints"] == of_a_slice * 3
    assert outputs["tpu_endpoint"] == of_a_slice[0]


def test_a_single_tpu_keeps_its_name(run: Run) -> None:
    _, outputs = run(config())
    assert outputs["tpu_names"] == [outputs["tpu_name"]] == ["tpu-stack-test-tpu"]


def test_several_slices_out_of_the_queue_are_one_request(run: Run) -> None:
    queued: dict[str, object] = {"queued": {}, "slices": 3}
    engine, outputs = run(config(tpu={**POD, **queued}))
    (spec,) = engine.dynamic("QueuedResource")["request"]["tpu"]["nodeSpec"]
    assert "nodeId" not in spec
    assert spec["multiNodeParams"] == {
        "nodeCount": 3,
        "nodeIdPrefix": "tpu-stack-test-tpu",
    }
    assert engine.dynamic("QueuedNode")["nodes"] == outputs["tpu_names"] == NAMES


@pytest.mark.parametrize("run_on", ["vm", "tpu"])
def test_the_trainers_machine_knows_all_slices_and_uses_the_first(run: Run, run_on: str) -> None:
    engine, _ = run(config(tpu={**ON_TPU, "slices": 3}, training={"runOn": run_on}))
    metadata = engine.one("Instance")["metadata"]
    for told in (metadata, *(vm.inputs["metadata"] for vm in engine.of("V2Vm"))):
        assert (told["tpu-name"], told["tpu-names"]) == (NAMES[0], ",".join(NAMES))
    warning = engine.warnings[0]
    assert f"so the trainer uses {NAMES[0]}" in warning


def test_a_disk_that_is_written_to_is_made_for_every_slice(run: Run) -> None:
    disk = {"name": "scratch", "sizeGib": 200}
    engine, _ = run(config(tpu={**POD, "slices": 2, "dataDisks": [disk]}, labels={"team": "a"}))
    made = [disk.inputs for disk in engine.of("Disk")]
    assert {(disk["type"], disk["size"], disk["zone"]) for disk in made} == {
        ("pd-balanced", 200, "us-central1-b")
    }
    assert {disk["labels"]["team"] for disk in made} == {"a"}
    attached = [vm.inputs["dataDisks"] for vm in engine.of("V2Vm")]
    assert attached == [
        [{"sourceDisk": f"{ZONE}/disks/{disk['name']}", "mode": "READ_WRITE"}] for disk in made
    ]
    assert [disk["name"].rpartition("-")[0] for disk in made] == [
        f"{name}-scratch" for name in NAMES[:2]
    ]


def test_a_disk_that_is_only_read_is_made_once_and_attached_to_all(run: Run) -> None:
    disk = {"name": "corpus", "snapshot": SNAPSHOT, "mode": "read-only", "type": "hyperdisk-ml"}
    engine, _ = run(config(tpu={**V6E, "slices": 2, "dataDisks": [disk]}))
    made = engine.one("Disk")
    assert (made["snapshot"], made["accessMode"]) == (SNAPSHOT, "READ_ONLY_MANY")
    attached = [vm.inputs["dataDisks"] for vm in engine.of("V2Vm")]
    assert attached == [[{"sourceDisk": f"{ZONE}/disks/{made['name']}", "mode": "READ_ONLY"}]] * 2


def test_a_given_disk_is_attached_and_none_is_made(run: Run) -> None:
    given = {"source": f"{ZONE}/disks/corpus", "mode": "read-only"}
    engine, _ = run(config(tpu={**POD, "dataDisks": [given]}))
    assert engine.of("Disk") == []
    assert engine.one("V2Vm")["dataDisks"] == [
        {"sourceDisk": f"{ZONE}/disks/corpus", "mode": "READ_ONLY"}
    ]


def test_another_snapshot_makes_another_disk_before_the_old_one_goes(run: Run) -> None:
    names = []
    for snapshot in (SNAPSHOT, f"{SNAPSHOT}-2"):
        disk = {"name": "corpus", "snapshot": snapshot}
        engine, _ = run(config(tpu={**POD, "dataDisks": [disk]}))
        names.append(engine.one("Disk")["name"])
    assert len(set(names)) == 2


def test_a_tpu_vm_has_the_options_of_its_machine(run: Run) -> None:
    logging = "https://www.googleapis.com/auth/logging.write"
    options = {"secureBoot": True, "tags": ["workers"], "scopes": [logging], "externalIps": True}
    engine, outputs = run(config(tpu={**POD, **options}))
    vm = engine.one("V2Vm")
    assert vm["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    assert vm["tags"] == ["tpu-stack-test-net", "workers"]
    assert vm["serviceAccount"] == {"email": outputs["service_account"], "scopes": [logging]}
    assert vm["networkConfig"]["enableExternalIps"] is True


def test_a_tpu_vm_has_the_full_scope_and_no_public_address_unless_it_is_asked_for(run: Run) -> None:
    engine, _ = run(config())
    vm = engine.one("V2Vm")
    assert vm["serviceAccount"]["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
    assert vm["networkConfig"]["enableExternalIps"] is False
    assert "shieldedInstanceConfig" not in vm


def test_a_queued_tpu_vm_has_the_same_options_and_those_of_the_queue_alone(run: Run) -> None:
    disk = {"source": f"{ZONE}/disks/corpus", "mode": "read-only"}
    options = {"secureBoot": True, "tags": ["workers"], "externalIps": True, "dataDisks": [disk]}
    request = asked(run, **options, bootDiskGib=200, autocheckpoint=True)
    (spec,) = request["tpu"]["nodeSpec"]
    node = spec["node"]
    assert node["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    assert node["tags"] == ["tpu-stack-test-net", "workers"]
    assert node["networkConfig"]["enableExternalIps"] is True
    assert node["dataDisks"] == [{"sourceDisk": disk["source"], "mode": "READ_ONLY"}]
    assert node["bootDiskConfig"] == {"diskSizeGb": "200"}
    assert node["autocheckpointEnabled"] is True


def test_a_request_names_what_it_is_guaranteed(run: Run) -> None:
    request = asked(run, capacity="reserved", queued={"reservation": "ours", "guaranteedHours": 24})
    assert request["guaranteed"] == {"reserved": True, "minDuration": "86400s"}
    assert request["reservationName"] == (
        "projects/some-project/locations/us-central1-b/reservations/ours"
    )
    whole = "projects/others/locations/us-central1-b/reservations/theirs"
    assert (
        asked(run, capacity="reserved", queued={"reservation": whole})["reservationName"] == whole
    )
    assert asked(run, queued={"guaranteedHours": 0.5})["guaranteed"] == {"minDuration": "1800s"}


def test_timeouts_are_the_engines_own() -> None:
    timeouts = custom_timeouts(
        TimeoutSettings.model_validate({"createMinutes": 90, "deleteMinutes": 7.5})
    )
    assert timeouts is not None
    assert (timeouts.create, timeouts.update, timeouts.delete) == ("90m", None, "7.5m")
    assert custom_timeouts(TimeoutSettings()) is None


def test_the_queue_is_told_how_long_a_deletion_may_take(run: Run) -> None:
    queued = {"queued": {}, "timeouts": {"deleteMinutes": 90}}
    engine, _ = run(config(tpu={**POD, **queued}))
    assert engine.dynamic("QueuedResource")["deleteMinutes"] == 90


def test_a_request_has_no_field_that_is_not_set(run: Run) -> None:
    request = asked(run)
    (spec,) = request["tpu"]["nodeSpec"]
    assert set(request) == {"tpu"}
    assert set(spec) == {"parent", "nodeId", "node"}
    assert set(spec["node"]) == {
        "acceleratorType",
        "runtimeVersion",
        "networkConfig",
        "serviceAccount",
        "metadata",
        "tags",
    }
