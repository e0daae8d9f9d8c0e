"""What the program checks and declares of a TPU that is several machines of Compute Engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pulumi_gcp as gcp
import pytest

from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_problems, find_warnings
from tpu_infra.checks.compute import backend_of
from tpu_infra.cost import of_stack, table
from tpu_infra.deployer import permissions_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.machines import Backend
from tpu_infra.settings.parse import parse

from .conftest import Run, config, context_of

NEXT = "9.20.0"
# `make next` runs them: older arguments of a group have no bulk mode.
with_bulk = pytest.mark.skipif(
    not hasattr(gcp.compute, "InstanceGroupManagerTargetSizePolicyArgs"),
    reason="the installed pulumi-gcp is older than 9.20",
)


TRAINS = {"runOn": "tpu"}


def a_slice(topology: str = "4x4", **settings: Any) -> dict[str, object]:
    """A stack with a slice of v6e, in which four machines are a 4x4."""
    tpu = {"acceleratorType": "ct6e-standard-4t", "topology": topology, **settings.pop("tpu", {})}
    jobs = {"training": {"runOn": "tpu"}, "jobs": {"enabled": True}}
    whole = {"zone": "us-east5-a", **jobs, **settings}
    return config(architecture="compute", tpu=tpu, **whole)


def parsed(topology: str = "4x4", **settings: Any) -> StackSettings:
    return parse(a_slice(topology, **settings), "test")


def said_of(settings: StackSettings, root: Path, provider: str = NEXT) -> list[str]:
    context = replace(context_of(settings, root), provider=provider)
    return [str(problem) for problem in find_problems(settings, context)]


def test_every_topology_of_the_catalog_is_taken_with_the_provider_that_makes_it(root: Path) -> None:
    for kind, host in Catalog().hosts.items():
        for topology in host.slices:
            tpu = {"acceleratorType": kind}
            settings = parsed(topology, zone=host.tpu.zones[0], tpu=tpu)
            assert said_of(settings, root) == []
            (problem,) = said_of(settings, root, "9.19.2")
            assert "`tpustack provider 10`" in problem


@pytest.mark.parametrize(
    ("kind", "topology", "hosts", "chips"),
    [
        ("ct5p-hightpu-4t", "2x2x4", 4, 16),
        ("ct6e-standard-4t", "16x16", 64, 256),
        ("tpu7x-standard-4t", "2x2x2", 2, 8),
        ("ct6e-standard-4t", "2x2", 1, 4),
        ("ct6e-standard-8t", "2x4", 1, 8),
    ],
)
def test_a_topology_takes_as_many_machines_as_its_chips(
    kind: str, topology: str, hosts: int, chips: int
) -> None:
    tpu = Catalog().accelerator(kind, topology)
    assert tpu is not None
    if hosts > 1:
        assert Catalog().accelerator(f"{kind}:{topology}") == tpu
    assert Catalog().accelerator(f"{kind}:9x9") is None
    assert (tpu.hosts, tpu.chips, tpu.topology) == (hosts, chips, topology)


def test_a_slice_costs_what_its_machines_and_their_disks_cost() -> None:
    estimate = of_stack(parsed(), "test", Catalog())
    parts = {line.part: line for line in estimate.lines}
    assert parts["TPU"].what == "4 x ct6e-standard-4t, on-demand"
    assert parts["TPU"].configured is not None
    assert f"{parts['TPU'].configured.amount:f}" == "43.20"
    assert parts["Disk"].what == "4 x 200 GiB hyperdisk-balanced"
    assert parts["NAT"].what == "4 machines"
    assert "4 x ct6e-standard-4t" in table(estimate)


@pytest.mark.parametrize("kind", ["ct5p-hightpu-4t", "ct6e-standard-4t", "tpu7x-standard-4t"])
def test_the_trainer_runs_on_a_slice_of_each_generation_without_more_settings(
    root: Path, kind: str
) -> None:
    host = Catalog().hosts[kind]
    tpu, training = {"acceleratorType": kind}, {"runOn": "tpu"}
    settings = parsed(host.slices[0], zone=host.tpu.zones[0], tpu=tpu, training=training, jobs={})
    assert said_of(settings, root) == []
    assert backend_of(settings, context_of(settings, root)) is Backend.JAX


def test_tensorflow_on_a_slice_is_refused_since_it_drives_one_machine(root: Path) -> None:
    training = {"runOn": "tpu", "backend": "tensorflow", "tensorflowVersion": "2.19.1"}
    assert said_of(parsed(training=training, jobs={}), root) == [
        'training.backend: "tensorflow" can\'t train on 4 machines: it drives only the chips of '
        "its own. Use jax."
    ]


@with_bulk
def test_another_backend_needs_another_template_with_its_own_lock(run: Run) -> None:
    jobs, _ = run(a_slice(training={**TRAINS, "tensorflowVersion": "2.19.1"}), provider=NEXT)
    on_jax, _ = run(a_slice(training=TRAINS, jobs={}), provider=NEXT)
    first, second = (engine.one("InstanceTemplate") for engine in (jobs, on_jax))
    assert first["name"] != second["name"]
    assert "training-backend" not in first["metadata"]
    assert second["metadata"]["training-backend"] == "jax"
    assert "\njax==" in second["metadata"]["tensorflow-lock"]


def test_a_slice_takes_the_rights_of_a_group_and_of_a_policy() -> None:
    needed = permissions_of(parsed()).of_project()
    assert "compute.resourcePolicies.create" in needed
    assert "compute.instanceGroupManagers.create" in needed
    for topology in (None, "2x2"):
        alone = parse(a_slice(tpu={"topology": topology}), "test")
        without = permissions_of(alone).of_project()
        assert "compute.resourcePolicies.create" not in without
        assert "compute.instanceGroupManagers.create" not in without


def test_a_preview_says_that_googles_pages_disagree_about_slices(root: Path) -> None:
    settings = parsed()
    warnings = find_warnings(settings, context_of(settings, root))
    assert any("which capacity a group in bulk mode can have" in said for said in warnings)


def test_a_subnet_needs_an_address_for_each_machine(root: Path) -> None:
    network = {"subnetRange": "10.0.0.0/26"}
    (problem,) = said_of(parsed("16x16", network=network), root)
    assert "there are 64" in problem


@with_bulk
def test_a_slice_is_a_group_that_makes_all_its_machines_at_once_in_their_topology(run: Run) -> None:
    engine, outputs = run(a_slice(), provider=NEXT)
    policy, group = engine.one("ResourcePolicy"), engine.one("InstanceGroupManager")
    assert policy["name"] == "tpu-stack-test-tpu-4x4"
    assert policy["region"] == "us-east5"
    assert policy["workloadPolicy"] == {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4"}
    assert group["name"] == outputs["tpu_name"] == "tpu-stack-test-tpu"
    assert group["zone"] == "us-east5-a"
    assert group["targetSize"] == 4
    assert group["targetSizePolicies"] == [{"mode": "BULK"}]
    assert "instanceLifecyclePolicy" not in group
    assert group["waitForInstances"]
    assert outputs["vm_name"] == "tpu-stack-test-tpu-001"
    assert outputs["tpu_names"] == ["tpu-stack-test-tpu"]
    assert not engine.of("Instance")


@with_bulk
def test_its_machines_are_what_one_machine_would_be(run: Run) -> None:
    engine, outputs = run(a_slice(tpu={"capacity": "spot"}), provider=NEXT)
    template = engine.one("InstanceTemplate")
    single, others = run(a_slice("2x2", tpu={"capacity": "spot"}), provider=NEXT)
    machine = single.one("Instance")
    for name in ("machineType", "networkInterfaces", "scheduling", "serviceAccount", "tags"):
        assert template[name] == machine[name]
    assert template["metadata"].keys() == machine["metadata"].keys()
    (disk,) = template["disks"]
    params = machine["bootDisk"]["initializeParams"]
    assert (disk["sourceImage"], disk["diskSizeGb"]) == (params["image"], params["size"])
    assert disk["diskType"] == params["type"] == "hyperdisk-balanced"
    assert outputs.keys() == others.keys()


@with_bulk
def test_another_release_keeps_the_template_and_other_settings_name_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(**settings: Any) -> str:
        engine, _ = run(a_slice(**settings), provider=NEXT)
        return str(engine.one("InstanceTemplate")["name"])

    first = name()
    assert first.startswith("tpu-stack-test-tpu-")
    assert name(tpu={"bootDiskGib": 300}) != first
    assert name(labels={"team": "vision"}) != first
    monkeypatch.setattr("tpu_infra.components.machine.program", lambda: "another agent")
    assert name() == first


@with_bulk
@pytest.mark.parametrize(
    "tpu", [{"capacity": "flex-start", "queued": {"runHours": 1}}, {"capacity": "spot"}]
)
def test_a_slice_that_google_does_not_bring_back_is_not_repaired_one_machine_at_a_time(
    run: Run, tpu: dict[str, Any]
) -> None:
    engine, _ = run(a_slice(tpu=tpu), provider=NEXT)
    group = engine.one("InstanceGroupManager")
    assert group["instanceLifecyclePolicy"] == {"defaultActionOnFailure": "DO_NOTHING"}
