"""What the program declares of TPUs beyond one plain TPU VM, with an engine that only records."""

from __future__ import annotations

from typing import Any

import pytest

from infra.components.machine import custom_timeouts
from infra.settings.machines import TimeoutSettings

from .conftest import Run, config

POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
ON_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-se"}
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
    assert f"the trainer of this project uses {NAMES[0]}" in warning


def test_a_tpu_vm_has_the_options_of_its_machine(run: Run) -> None:
    logging = "https://www.googleapis.com/auth/logging.write"
    options = {"secureBoot": True, "scopes": [logging], "externalIps": True}
    engine, outputs = run(config(tpu={**POD, **options}))
    vm = engine.one("V2Vm")
    assert vm["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    assert vm["tags"] == ["tpu-stack-test-net"]
    assert vm["serviceAccount"] == {"email": outputs["service_account"], "scopes": [logging]}
    assert vm["networkConfig"]["enableExternalIps"] is True


def test_a_tpu_vm_has_the_full_scope_and_no_public_address_unless_it_is_asked_for(run: Run) -> None:
    engine, _ = run(config())
    vm = engine.one("V2Vm")
    assert vm["serviceAccount"]["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
    assert vm["networkConfig"]["enableExternalIps"] is False
    assert "shieldedInstanceConfig" not in vm


def test_a_queued_tpu_vm_has_the_same_options_and_those_of_the_queue_alone(run: Run) -> None:
    options = {"secureBoot": True, "externalIps": True}
    request = asked(run, **options)
    (spec,) = request["tpu"]["nodeSpec"]
    node = spec["node"]
    assert node["shieldedInstanceConfig"] == {"enableSecureBoot": True}
    assert node["tags"] == ["tpu-stack-test-net"]
    assert node["networkConfig"]["enableExternalIps"] is True


def test_a_request_names_its_reservation(run: Run) -> None:
    request = asked(run, capacity="reserved", queued={"reservation": "ours"})
    assert request["guaranteed"] == {"reserved": True}
    assert request["reservationName"] == (
        "projects/some-project/locations/us-central1-b/reservations/ours"
    )
    whole = "projects/others/locations/us-central1-b/reservations/theirs"
    assert (
        asked(run, capacity="reserved", queued={"reservation": whole})["reservationName"] == whole
    )


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
