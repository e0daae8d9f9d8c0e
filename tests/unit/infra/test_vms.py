"""The VM as the settings ask for it: how it is bought, watched over and kept."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .conftest import Run, config

SPOT = {"capacity": "spot"}


@pytest.mark.parametrize(
    ("vm", "expected"),
    [
        (
            {},
            {
                "provisioningModel": "STANDARD",
                "preemptible": False,
                "automaticRestart": True,
                "onHostMaintenance": "MIGRATE",
            },
        ),
        (
            SPOT,
            {
                "provisioningModel": "SPOT",
                "preemptible": True,
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
                "instanceTerminationAction": "STOP",
            },
        ),
        (
            {**SPOT, "terminationAction": "delete"},
            {
                "provisioningModel": "SPOT",
                "preemptible": True,
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
                "instanceTerminationAction": "DELETE",
            },
        ),
        (
            {"capacity": "preemptible"},
            {
                "provisioningModel": "STANDARD",
                "preemptible": True,
                "automaticRestart": False,
                "onHostMaintenance": "TERMINATE",
            },
        ),
    ],
)
@pytest.mark.parametrize("kind", ["Instance", "InstanceTemplate"])
def test_the_vm_is_bought_as_the_stack_says(
    run: Run, kind: str, vm: dict[str, Any], expected: dict[str, Any]
) -> None:
    managed: dict[str, Any] = {} if kind == "Instance" else {"instanceGroup": {}}
    engine, _ = run(config(vm={**vm, **managed}))
    assert engine.one(kind)["scheduling"] == expected


def test_the_vm_is_shielded_and_lets_iam_say_who_logs_in_unless_the_stack_says_otherwise(
    run: Run,
) -> None:
    vm = run(config())[0].one("Instance")
    assert vm["metadata"]["enable-oslogin"] == "TRUE"
    assert vm["metadata"]["serial-port-logging-enable"] == "true"
    assert set(vm["shieldedInstanceConfig"].values()) == {True}
    shielded = {"secureBoot": False, "vtpm": False, "integrityMonitoring": False}
    off = {"osLogin": False, "serialPortLogging": False}
    vm = run(config(vm={**off, "shielded": shielded}))[0].one("Instance")
    assert vm["metadata"]["enable-oslogin"] == "FALSE"
    assert vm["metadata"]["serial-port-logging-enable"] == "false"
    assert set(vm["shieldedInstanceConfig"].values()) == {False}


def test_the_ops_agent_is_installed_where_the_stack_asks_for_it_and_may_write_metrics(
    run: Run,
) -> None:
    engine, _ = run(config(vm={"opsAgent": True}))
    assert engine.one("Instance")["metadata"]["ops-agent"] == "true"
    roles = [grant.inputs["role"] for grant in engine.of("IAMMember")]
    assert "roles/monitoring.metricWriter" in roles
    engine, _ = run(config())
    assert "ops-agent" not in engine.one("Instance")["metadata"]
    roles = [grant.inputs["role"] for grant in engine.of("IAMMember")]
    assert "roles/monitoring.metricWriter" not in roles


def test_a_boot_disk_that_is_kept_is_a_resource_of_its_own(run: Run) -> None:
    engine, _ = run(config(vm={"keepBootDisk": True, "bootDiskGib": 100}))
    disk = engine.one("Disk")
    assert (disk["size"], disk["image"]) == (100, "debian-cloud/debian-12")
    # A disk that comes and goes with the VM has the VM's name.
    assert disk["name"] == "tpu-stack-test-vm-boot"
    assert engine.one("Instance")["bootDisk"]["autoDelete"] is False
    engine, _ = run(config())
    assert engine.of("Disk") == []
    assert engine.one("Instance")["bootDisk"]["autoDelete"] is True


def test_a_managed_vm_has_what_one_by_itself_has(run: Run) -> None:
    alone = run(config())[0].one("Instance")
    engine, outputs = run(config(vm={"instanceGroup": {}}))
    template = engine.one("InstanceTemplate")
    assert engine.of("Instance") == []
    for key in ("machineType", "serviceAccount", "shieldedInstanceConfig", "labels"):
        assert template[key] == alone[key]
    script = {"startup-script": alone["metadataStartupScript"], "health-port": "8090"}
    assert template["metadata"] == {**alone["metadata"], **script}
    assert template["networkInterfaces"] == alone["networkInterfaces"]
    assert outputs["vm_name"] == engine.one("PerInstanceConfig")["name"] == "tpu-stack-test-vm-0"


def test_only_googles_health_checks_reach_the_vm_of_an_instance_group(run: Run) -> None:
    managed = {"initialDelaySeconds": 120, "checkIntervalSeconds": 10, "failedChecks": 5}
    engine, outputs = run(config(vm={"instanceGroup": managed}))
    check = engine.one("HealthCheck")
    assert check["httpHealthCheck"] == {"port": 8090}
    assert (check["checkIntervalSec"], check["unhealthyThreshold"]) == (10, 5)
    group = engine.one("InstanceGroupManager")
    assert group["autoHealingPolicies"]["initialDelaySec"] == 120
    assert "targetSize" not in group
    (rule,) = (r.inputs for r in engine.of("Firewall") if r.name == "allow-health")
    assert rule["sourceRanges"] == ["35.191.0.0/16", "130.211.0.0/22"]
    assert rule["targetServiceAccounts"] == [outputs["service_account"]]
    assert rule["allows"] == [{"protocol": "tcp", "ports": ["8090"]}]


def test_a_managed_vm_that_does_not_run_the_trainer_only_has_to_run(run: Run) -> None:
    engine, _ = run(config(vm={"instanceGroup": {}}, training={"runOn": "tpu"}))
    assert engine.of("HealthCheck") == []
    assert not engine.one("InstanceGroupManager").get("autoHealingPolicies")


def test_a_managed_vm_is_not_told_to_turn_itself_off(run: Run) -> None:
    limits = {"timeToLiveHours": 1}
    alone = run(config(limits=limits))[0].one("Instance")
    assert json.loads(alone["metadata"]["limits"])["turnOff"] is True
    managed = run(config(limits=limits, vm={"instanceGroup": {}}))[0].one("InstanceTemplate")
    assert json.loads(managed["metadata"]["limits"])["turnOff"] is False


def test_a_template_is_called_by_what_it_says(run: Run) -> None:
    def name(**vm: object) -> str:
        return str(run(config(vm={"instanceGroup": {}, **vm}))[0].one("InstanceTemplate")["name"])

    assert name() == name() != name(machineType="n2-standard-4")
    assert name().startswith("tpu-stack-test-vm-")


def test_a_new_lock_makes_no_other_template(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(config(vm={"instanceGroup": {}}))[0].one("InstanceTemplate")
    monkeypatch.setattr(
        "tpu_infra.components.machine.lock_of", lambda *_: "tensorflow-cpu==2.18.0 --hash=sha256:0"
    )
    after = run(config(vm={"instanceGroup": {}}))[0].one("InstanceTemplate")
    assert after["metadata"]["tensorflow-lock"] != before["metadata"]["tensorflow-lock"]
    assert after["name"] == before["name"]


def test_another_tensorflow_gets_its_own_lock_which_the_engine_would_keep_otherwise(
    run: Run,
) -> None:
    def declared(version: str) -> tuple[str, str, str]:
        settings = {"vm": {"instanceGroup": {}}, "training": {"tensorflowVersion": version}}
        (template,) = run(config(**settings))[0].of("InstanceTemplate")
        lock = template.inputs["metadata"]["tensorflow-lock"]
        return template.name, template.inputs["name"], lock

    before, after = declared("2.16.1"), declared("2.16.2")
    # What changes along with an ignored property has another URN, or the old lock comes along.
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert declared("2.16.1") == before


def test_another_note_on_costs_makes_no_other_template(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(config(vm={"instanceGroup": {}}))[0].one("InstanceTemplate")
    monkeypatch.setattr("tpu_infra.components.machine.without_price", lambda *_: "another note")
    after = run(config(vm={"instanceGroup": {}}))[0].one("InstanceTemplate")
    assert after["metadata"]["cost-note"] == "another note."
    assert after["name"] == before["name"]


def test_the_trainers_machine_knows_what_keeps_costing_and_what_ends_it(
    run: Run,
) -> None:
    vm = run(config())[0].one("Instance")["metadata"]["cost-note"]
    # No price: a newer catalog would update every machine of every stack.
    assert re.match(r"TPU and VM are billed until `pulumi destroy --stack test`, [^$]*$", vm)
    bare = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    training = {"tensorflowVersion": "2.19.1"}
    engine, _ = run(config(tpu=bare, training=training))
    assert "cost-note" not in engine.one("V2Vm")["metadata"]
    engine, _ = run(config(tpu=bare, training={**training, "runOn": "tpu"}))
    assert engine.one("V2Vm")["metadata"]["cost-note"] == vm
    assert "cost-note" not in engine.one("Instance")["metadata"]


@pytest.mark.parametrize("vm", [{}, {"instanceGroup": {}}, {"keepBootDisk": True}])
def test_the_vm_of_an_ai_zone_is_in_its_parent(run: Run, vm: dict[str, object]) -> None:
    tpu = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    training = {"runOn": "tpu", "tensorflowVersion": "2.19.1"}
    engine, outputs = run(config(zone="us-central1-ai1a", tpu=tpu, vm=vm, training=training))
    assert engine.one("V2Vm")["zone"] == "us-central1-ai1a"
    kinds = ("Instance", "InstanceGroupManager", "PerInstanceConfig", "Disk")
    zones = {made.inputs["zone"] for kind in kinds for made in engine.of(kind)}
    assert zones == {outputs["vm_zone"]} == {"us-central1-a"}
    assert engine.one("Subnetwork")["region"] == "us-central1"
