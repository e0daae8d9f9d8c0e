"""What the program declares of a TPU that is a machine of Compute Engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_warnings
from tpu_infra.cost import of_stack, table, until_destroyed
from tpu_infra.deployer import permissions_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse

from .conftest import Run, config, context_of

HOST = {"acceleratorType": "ct6e-standard-4t"}
TRAINS = {"runOn": "tpu", "tensorflowVersion": "2.19.1"}


def compute(**settings: Any) -> dict[str, object]:
    tpu = {**HOST, **settings.pop("tpu", {})}
    whole = {"zone": "us-east5-a", "training": TRAINS, **settings}
    return config(architecture="compute", tpu=tpu, **whole)


def parsed(**settings: Any) -> StackSettings:
    return parse(compute(**settings), "test")


def test_the_tpu_is_one_instance_from_googles_image_and_the_only_machine(run: Run) -> None:
    engine, outputs = run(compute())
    made = engine.one("Instance")
    assert made["name"] == "tpu-stack-test-tpu"
    assert (made["machineType"], made["zone"]) == ("ct6e-standard-4t", "us-east5-a")
    assert made["bootDisk"]["initializeParams"] == {
        "image": "ubuntu-os-accelerator-images/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
        "size": 200,
        "type": "hyperdisk-balanced",
    }
    assert made["bootDisk"]["autoDelete"]
    (interface,) = made["networkInterfaces"]
    assert interface["nicType"] == "GVNIC"
    assert interface["accessConfigs"] == []
    assert made["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "provisioningModel": "STANDARD",
        "automaticRestart": True,
    }
    account = "tpu-stack-test-sa@some-project.iam.gserviceaccount.com"
    assert made["serviceAccount"]["email"] == outputs["service_account"] == account
    assert not engine.of("V2Vm")
    assert "advancedMachineFeatures" not in made
    assert made["shieldedInstanceConfig"] == {"enableSecureBoot": False}


def test_its_outputs_are_those_of_every_stack(run: Run) -> None:
    _, outputs = run(compute())
    _, others = run(config())
    assert outputs.keys() == others.keys()
    assert outputs["architecture"] == "compute"
    assert outputs["tpu_names"] == ["tpu-stack-test-tpu"]
    assert outputs["tpu_name"] == outputs["vm_name"]
    assert outputs["tpu_zone"] == outputs["vm_zone"] == "us-east5-a"
    assert (outputs["tpu_endpoint"], outputs["tpu_endpoints"]) == ("", [])


def test_its_metadata_make_it_run_the_trainer_on_itself(run: Run) -> None:
    engine, _ = run(compute())
    told = engine.one("Instance")["metadata"]
    assert told["tpu-is-this-machine"] == told["tpu-runs-training"] == "true"
    assert told["training-tensorflow"] == "2.19.1"
    assert told["serial-port-logging-enable"] == "true"
    assert "agent" in told
    assert "start_training local" in told["startup-script"]


WATCHED: dict[str, Any] = {
    "tpu": {"capacity": "spot"},
    "recovery": {"enabled": True},
    "limits": {"timeToLiveHours": 8},
    "vm": {"machineType": "e2-highmem-2"},
}


def test_a_vm_for_recovery_has_the_agent_and_no_trainer_and_the_tpu_has_no_limits(
    run: Run,
) -> None:
    engine, outputs = run(compute(**WATCHED))
    tpu, vm = sorted((one.inputs for one in engine.of("Instance")), key=lambda one: one["name"])
    assert (vm["name"], vm["machineType"]) == ("tpu-stack-test-vm", "e2-highmem-2")
    told = vm["metadata"]
    assert told["tpu-form"] == "machine"
    assert json.loads(told["limits"]) == {
        "tpus": ["tpu-stack-test-tpu"],
        "recovery": {"preemption": 48, "failure": 10},
        "timeToLiveHours": 8,
        "turnOff": True,
    }
    assert not {"training-wheel", "training-tensorflow", "tpu-is-this-machine"} & told.keys()
    assert "limits" not in tpu["metadata"]
    # What is stopped was preempted; what is gone may be gone on purpose.
    assert tpu["scheduling"]["instanceTerminationAction"] == "STOP"
    assert outputs["vm_name"] == "tpu-stack-test-tpu"
    (role,) = engine.of("IAMCustomRole")
    assert "compute.instances.create" in role.inputs["permissions"]
    assert not [name for name in role.inputs["permissions"] if name.startswith("tpu.")]


def test_only_the_account_of_the_vm_may_create_machines_and_no_job_or_trainer_has_it(
    run: Run,
) -> None:
    engine, _ = run(compute(**WATCHED, jobs={"enabled": True}))
    tpu, vm = sorted((one.inputs for one in engine.of("Instance")), key=lambda one: one["name"])
    machines, watcher = (one["serviceAccount"]["email"] for one in (tpu, vm))
    assert machines.startswith("tpu-stack-test-sa@")
    assert watcher.startswith("tpu-stack-test-vm@")
    members = [*engine.of("IAMMember"), *engine.of("BucketIAMMember")]
    grants = [one.inputs for one in members]
    (own,) = [one.inputs for one in members if one.name == "agent"]
    assert own["member"] == f"serviceAccount:{watcher}"
    (acts,) = [one for one in grants if one.get("role") == "roles/iam.serviceAccountUser"]
    assert acts["member"] == f"serviceAccount:{watcher}"
    assert acts["serviceAccountId"].endswith(machines)
    # Nor may anyone on the TPU act as the VM, or write what the VM creates machines from.
    assert not [one for one in grants if str(one.get("serviceAccountId")).endswith(watcher)]
    (writes,) = [
        one
        for one in grants
        if one.get("role") == "roles/storage.objectUser" and one["member"].endswith(machines)
    ]
    assert "agent/declaration.json" in writes["condition"]["expression"]


def test_the_agent_on_the_vm_asks_for_the_machine_that_the_provider_makes(run: Run) -> None:
    engine, _ = run(compute(**WATCHED))
    objects = {one.inputs["name"]: one.inputs for one in engine.of("BucketObject")}
    # Google's provider takes every object's content for a secret.
    content = json.loads(objects["agent/declaration.json"]["content"]["value"])
    body = content["tpus"]["tpu-stack-test-tpu"]
    instances = {one.inputs["name"]: one.inputs for one in engine.of("Instance")}
    made = instances["tpu-stack-test-tpu"]
    assert body["scheduling"] == made["scheduling"]
    assert body["labels"] == made["labels"]
    assert {one["key"]: one["value"] for one in body["metadata"]["items"]} == made["metadata"]
    family = "family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    assert body["disks"][0]["initializeParams"]["sourceImage"] == (
        f"projects/ubuntu-os-accelerator-images/global/images/{family}"
    )
    assert body["machineType"] == "zones/us-east5-a/machineTypes/ct6e-standard-4t"


def test_a_vm_for_recovery_is_priced_with_its_disk_and_said_to_do_nothing_else(root: Any) -> None:
    settings = parsed(**WATCHED)
    hour = of_stack(settings, "test", Catalog())
    assert [line.part for line in hour.lines][:4] == ["TPU", "VM", "Disk", "Disk"]
    assert until_destroyed(hour, settings, "test").startswith("TPU and VM cost")
    said = find_warnings(settings, context_of(settings, root))
    assert any("the VM only recreates a preempted TPU" in each for each in said)
    assert "recover --loop" not in str(said)


V5P, V6E, TPU7X = "ct5p-hightpu-4t", "ct6e-standard-4t", "tpu7x-standard-4t"


@pytest.mark.parametrize(
    ("kind", "training", "on_jax", "version"),
    [
        (V5P, {}, True, "2.19.1"),
        (V6E, {}, True, "2.19.1"),
        (TPU7X, {}, True, "2.19.1"),
        (TPU7X, {"tensorflowVersion": "2.19.1"}, True, "2.19.1"),
        (V6E, {"backend": "jax", "tensorflowVersion": "2.19.1"}, True, "2.19.1"),
        (V5P, {"tensorflowVersion": "2.18.0"}, False, "2.18.0"),
        (V6E, {"tensorflowVersion": "2.19.1"}, False, "2.19.1"),
    ],
)
def test_the_trainer_runs_on_jax_unless_tensorflow_is_asked_for(
    run: Run, kind: str, training: dict[str, str], on_jax: bool, version: str
) -> None:
    given = {"runOn": "tpu", "args": ["--steps=7"], **training}
    zone = "us-central1-c" if kind == TPU7X else "us-east5-a"
    engine, _ = run(compute(zone=zone, tpu={"acceleratorType": kind}, training=given))
    told = engine.one("Instance")["metadata"]
    assert told["training-tensorflow"] == version
    assert told.get("training-backend") == ("jax" if on_jax else None)
    assert json.loads(told["training-args"]) == ["--backend=jax"] * on_jax + ["--steps=7"]
    lock, package = told["tensorflow-lock"], "tensorflow-cpu" if on_jax else "tensorflow-tpu"
    assert f"\n{package}=={version} \\\n" in lock
    assert ("\njax==" in lock) == on_jax


def test_a_machine_for_jobs_needs_no_tensorflow(run: Run) -> None:
    tpu = {"acceleratorType": "tpu7x-standard-4t"}
    jobs = compute(zone="us-central1-c", tpu=tpu, training={"runOn": "tpu"}, jobs={"enabled": True})
    engine, _ = run(jobs)
    made = engine.one("Instance")
    assert made["metadata"]["training-tensorflow"] == "none"
    assert made["metadata"]["training-jobs"].startswith("tpu-stack-test-job@")
    assert "2404-amd64-tpu-tpu7x" in made["bootDisk"]["initializeParams"]["image"]


@pytest.mark.parametrize(
    ("tpu", "scheduling"),
    [
        (
            {"capacity": "spot"},
            {"provisioningModel": "SPOT", "preemptible": True},
        ),
        (
            {"capacity": "flex-start", "queued": {"runHours": 2.5}},
            {"provisioningModel": "FLEX_START", "maxRunDuration": {"seconds": 9000}},
        ),
    ],
)
def test_what_google_takes_or_ends_is_deleted(
    run: Run, tpu: dict[str, Any], scheduling: dict[str, Any]
) -> None:
    engine, _ = run(compute(tpu=tpu))
    assert engine.one("Instance")["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
        **scheduling,
    }


def test_a_machine_of_a_reservation_in_calendar_mode_ends_with_it(run: Run) -> None:
    queued = {"reservation": "march", "reservationBound": True}
    engine, _ = run(compute(tpu={"capacity": "reserved", "queued": queued}))
    made = engine.one("Instance")
    assert made["scheduling"] == {
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": True,
        "provisioningModel": "RESERVATION_BOUND",
        "instanceTerminationAction": "DELETE",
    }
    assert made["reservationAffinity"]["type"] == "SPECIFIC_RESERVATION"


@pytest.mark.parametrize(("capacity", "restarts"), [("on-demand", True), ("spot", False)])
def test_google_deletes_the_machine_when_its_time_is_up_and_no_agent_has_to(
    run: Run, capacity: str, restarts: bool
) -> None:
    engine, _ = run(compute(tpu={"capacity": capacity}, limits={"timeToLiveHours": 1.5}))
    made = engine.one("Instance")
    assert made["scheduling"]["maxRunDuration"] == {"seconds": 5400}
    assert made["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert made["scheduling"]["automaticRestart"] == restarts
    assert "limits" not in made["metadata"]
    assert not engine.of("IAMCustomRole")
    needed = permissions_of(parsed(limits={"timeToLiveHours": 1.5}))
    assert "iam.roles.create" not in needed.of_project()


@pytest.mark.parametrize(
    ("tpu", "affinity"),
    [
        ({}, {"type": "ANY_RESERVATION"}),
        ({"capacity": "spot"}, None),
        (
            {"capacity": "flex-start", "queued": {"runHours": 1}},
            {"type": "NO_RESERVATION"},
        ),
        (
            {"capacity": "reserved", "queued": {"reservation": "mine"}},
            {"type": "SPECIFIC_RESERVATION", "values": ["mine"]},
        ),
        (
            {
                "capacity": "reserved",
                "queued": {"reservation": "projects/lab/locations/us-east5-a/reservations/ours"},
            },
            {"type": "SPECIFIC_RESERVATION", "values": ["projects/lab/reservations/ours"]},
        ),
    ],
)
def test_it_comes_from_the_reservation_that_is_named(
    run: Run, tpu: dict[str, Any], affinity: dict[str, Any] | None
) -> None:
    engine, _ = run(compute(tpu=tpu))
    found = engine.one("Instance").get("reservationAffinity")
    if affinity and "values" in affinity:
        key = "compute.googleapis.com/reservation-name"
        values = affinity.pop("values")
        affinity["specificReservation"] = {"key": key, "values": values}
    assert found == affinity


def test_options_of_the_machine_are_those_of_the_settings(run: Run) -> None:
    tpu = {
        "acceleratorType": "ct6e-standard-8t",
        "topology": "2x4",
        "bootDiskGib": 500,
        "externalIps": True,
        "secureBoot": True,
        "tags": ["lab"],
    }
    engine, _ = run(compute(tpu=tpu))
    made = engine.one("Instance")
    assert made["bootDisk"]["initializeParams"]["size"] == 500
    assert made["networkInterfaces"][0]["accessConfigs"] == [{}]
    assert made["shieldedInstanceConfig"]["enableSecureBoot"]
    assert made["tags"] == ["tpu-stack-test-net", "lab"]
    # A guide to this machine type wants it.
    assert made["advancedMachineFeatures"] == {"threadsPerCore": 1}


def test_a_stack_without_the_tpu_api_needs_neither_it_nor_its_roles(run: Run) -> None:
    engine, _ = run(compute())
    roles = {member.inputs["role"] for member in engine.of("IAMMember") if "role" in member.inputs}
    assert "roles/tpu.viewer" not in roles
    services = {one.inputs["service"] for one in engine.of("Service")}
    assert "compute.googleapis.com" in services
    assert "tpu.googleapis.com" not in services
    needed = permissions_of(parsed())
    assert not [name for name in needed.of_project() if name.startswith("tpu.nodes.")]
    given = {role for roles in needed.grants.values() for role in roles}
    assert "roles/logging.logWriter" in given
    assert "roles/tpu.viewer" not in given
    assert "compute.subnetworks.useExternalIp" not in needed.of_project()
    public = permissions_of(parsed(tpu={"externalIps": True}))
    assert "compute.subnetworks.useExternalIp" in public.of_project()


def test_its_cost_is_its_chips_and_its_disk() -> None:
    catalog, settings = Catalog(), parsed()
    estimate = of_stack(settings, "test", catalog)
    parts = {line.part: line for line in estimate.lines}
    assert "VM" not in parts
    price = parts["TPU"].configured
    assert price is not None
    assert f"{price.amount:f}" == "10.80"
    assert parts["Disk"].what == "200 GiB hyperdisk-balanced"
    assert "unknown: the catalog has no price for Disk 200 GiB" in table(estimate)
    said = until_destroyed(estimate, settings, "test")
    assert said.startswith("TPU and disk cost over $10.8")
    assert said.endswith("Nothing else stops it")
    ending = parsed(limits={"timeToLiveHours": 8})
    ends = "Google deletes the TPU 8 hours after its creation"
    assert until_destroyed(estimate, ending, "test").endswith(ends)
    flexible = parsed(tpu={"capacity": "flex-start", "queued": {"runHours": 2}})
    ends = "Google deletes the TPU 2 hours after its creation"
    assert until_destroyed(estimate, flexible, "test").endswith(ends)
    hour = {line.part: line for line in of_stack(flexible, "test", catalog).lines}["TPU"].configured
    assert hour is not None
    assert f"{hour.amount:f}" == "5.40"


@pytest.mark.parametrize(
    ("tpu", "said"),
    [
        ({"capacity": "spot"}, "Run `tpustack recover --loop --stack test` on another computer"),
        (
            {"capacity": "flex-start", "queued": {"runHours": 1}},
            "without capacity `pulumi up` fails at once",
        ),
        ({}, "architecture: compute; users report that TensorFlow fails on v6e. Details:"),
    ],
)
def test_a_preview_says_what_nothing_brings_back_and_what_is_not_proven(
    root: Any, tpu: dict[str, Any], said: str
) -> None:
    settings = parsed(tpu=tpu)
    assert any(said in each for each in find_warnings(settings, context_of(settings, root)))


def test_a_slice_waits_for_capacity_so_that_no_preview_says_that_it_does_not(root: Any) -> None:
    flexible = {"capacity": "flex-start", "queued": {"runHours": 1}}
    settings = parsed(tpu={**flexible, "topology": "4x4"})
    assert "without capacity" not in str(find_warnings(settings, context_of(settings, root)))


def test_a_preview_says_that_the_trainer_on_jax_has_seen_no_tpu(root: Any) -> None:
    settings = parsed(training={"runOn": "tpu"})
    (said,) = [
        each
        for each in find_warnings(settings, context_of(settings, root))
        if each.startswith("unverified")
    ]
    assert "architecture: compute; the trainer on JAX has run on CPUs only. Details:" in said


@pytest.mark.parametrize("preview", [True, False])
def test_what_is_unverified_is_not_said_again_by_the_update(run: Run, preview: bool) -> None:
    engine, _ = run(compute(tpu={"capacity": "spot"}), preview=preview)
    assert any(said.startswith("unverified") for said in engine.warnings) == preview
    assert any(said.startswith("tpu.capacity is spot") for said in engine.warnings)


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    made = LocalCloud(tmp_path_factory.mktemp("home"), clock=VirtualClock())
    made.cloud.machines = FakeMachines()
    made.start()
    projects.enable_services(made.cloud, projects.DEFAULT_PROJECT, ("compute.googleapis.com",))
    yield Client(made)
    made.stop()


@pytest.mark.parametrize("kind", sorted(Catalog().hosts))
def test_google_takes_the_disk_that_the_catalog_gives_a_machine_type_and_no_other(
    google: Client, kind: str
) -> None:
    host = Catalog().hosts[kind]
    zone = next(zone for zone in host.tpu.zones if "-ai" not in zone)
    place = f"compute.googleapis.com/compute/v1/projects/{projects.DEFAULT_PROJECT}/zones/{zone}"
    assert len(host.tpu.disk_types) == 1
    for disk in ("pd-balanced", "hyperdisk-balanced"):
        project, _, family = host.image.partition("/")
        params = {
            "sourceImage": f"projects/{project}/global/images/family/{family}",
            "diskSizeGb": "200",
            "diskType": f"zones/{zone}/diskTypes/{disk}",
        }
        body = {
            "name": f"{kind}-{disk}",
            "machineType": f"zones/{zone}/machineTypes/{kind}",
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "scheduling": {"onHostMaintenance": "TERMINATE"},
        }
        boots = disk in host.tpu.disk_types
        google.post(f"{place}/instances", body, status=200 if boots else 400)
