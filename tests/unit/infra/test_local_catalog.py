"""Two rooms have a catalog each; what one of them offers, the other does too."""

from __future__ import annotations

from localcloud.services.compute import catalog as local_compute
from localcloud.services.tpu import catalog as local
from tpu_infra.catalog import Catalog

CATALOG = Catalog()
FAMILIES = {"v5litepod": "v5e"}
# Versions of classic nodes without TensorFlow, or with no version of it that a trainer could have.
NO_TENSORFLOW = {"pytorch-2.0", "nightly"}


def test_both_know_the_same_tpus_in_the_same_zones() -> None:
    ours = {
        name: (tpu.topology, tpu.hosts, set(tpu.zones), tpu.disk_types, tpu.data_disks)
        for name, tpu in CATALOG.accelerators.items()
    }
    theirs = {
        name: (tpu.topology, tpu.hosts, set(tpu.zones), tpu.disks, tpu.disk_count)
        for name, tpu in local.accelerators().items()
    }
    assert ours == theirs


def test_both_want_the_same_room_for_a_classic_node() -> None:
    for name, tpu in CATALOG.accelerators.items():
        if tpu.cidr_prefix:
            assert tpu.cidr_prefix == local.accelerators()[name].prefix, name


def test_both_know_the_same_runtimes_on_the_same_tpus() -> None:
    # Google takes it, though no page of it says for what.
    assert set(CATALOG.runtimes) == set(local.runtime_versions()) - {"tpu-vm-cos-stable"}
    for name, runtime in CATALOG.runtimes.items():
        on = {
            FAMILIES.get(tpu.generation, tpu.generation)
            for tpu in local.accelerators().values()
            if local.runs_on(name, tpu)
        }
        assert on == set(runtime.families), name
        assert local.serves_grpc(name) == runtime.serves_grpc


def test_both_know_the_same_versions_of_classic_nodes() -> None:
    served = {name for name, version in CATALOG.node_versions.items() if version.ended is None}
    assert served == set(local.tensorflow_versions()) - NO_TENSORFLOW


def test_the_local_cloud_has_every_machine_type_with_the_same_cpus_and_memory() -> None:
    theirs = local_compute.machine_types()
    for name, machine in CATALOG.machine_types.items():
        assert name in theirs
        assert (theirs[name].vcpus, theirs[name].memory) == (machine.vcpus, machine.memory_gib)
