"""The catalog's data agrees with itself and with what its sources say."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tpu_infra.catalog import Catalog, proofs
from tpu_infra.catalog.entries import Proof

CATALOG = Catalog()


@pytest.mark.parametrize(
    ("name", "cores", "chips", "hosts", "hbm_gib"),
    [
        ("v2-8", 8, 4, 1, 64),
        ("v3-8", 8, 4, 1, 128),
        ("v3-32", 32, 16, 4, 512),
        ("v3-2048", 2048, 1024, 256, 32768),
        ("v4-4096", 4096, 2048, 512, 65536),
        ("v5litepod-8", 8, 8, 1, 128),
        ("v5litepod-256", 256, 256, 64, 4096),
        ("v5p-12288", 12288, 6144, 1536, 583680),
        ("v6e-256", 256, 256, 64, 8192),
    ],
)
def test_a_tpu_has_the_cores_chips_hosts_and_memory_that_google_names(
    name: str, cores: int, chips: int, hosts: int, hbm_gib: int
) -> None:
    tpu = CATALOG.accelerators[name]
    assert (tpu.cores, tpu.chips, tpu.hosts, tpu.hbm_gib) == (cores, chips, hosts, hbm_gib)


@pytest.mark.parametrize(
    ("family", "tflops", "gbps", "clock_mhz"),
    [
        ("v2", 46, 716, 702),
        ("v3", 123, 900, 938),
        ("v5e", 197, 819, 1503),
        ("v6e", 918, 1638, 1751),
        ("tpu7x", 2307, 7380, 2200),
    ],
)
def test_a_chip_has_the_peaks_that_google_publishes_and_the_clock_that_they_imply(
    family: str, tflops: int, gbps: int, clock_mhz: int
) -> None:
    chip = CATALOG.chips[family]
    assert (chip.peak_tflops, chip.hbm_gbps, chip.clock_mhz) == (tflops, gbps, clock_mhz)


@pytest.mark.parametrize(
    ("family", "cycles"),
    [
        *(("v2", 34_125_910), ("v3", 17_315_966), ("v4", 4_523_672), ("v5e", 9_557_312)),
        *(("v5p", 4_652_072), ("v6e", 2_977_840), ("tpu7x", 2_604_600)),
    ],
)
def test_the_compilers_cycles_of_a_large_product_are_no_faster_than_the_chip(
    family: str, cycles: int
) -> None:
    """What libtpu 0.0.52 counts on a device for two matrices of 8192 squared."""
    chip = CATALOG.chips[family]
    part = 2 * 8192**3 / cycles * chip.clock_mhz * 1e6 * chip.devices / (chip.peak_tflops * 1e12)
    assert 0.7 < part < 1


@pytest.mark.parametrize(
    ("name", "family", "cores", "chips", "hbm_gib", "vcpus", "memory_gib"),
    [
        ("ct5p-hightpu-4t", "v5p", 8, 4, 380, 208, 448),
        ("ct6e-standard-1t", "v6e", 1, 1, 32, 44, 176),
        ("ct6e-standard-4t", "v6e", 4, 4, 128, 180, 720),
        ("ct6e-standard-8t", "v6e", 8, 8, 256, 180, 1440),
        ("tpu7x-standard-4t", "tpu7x", 8, 4, 768, 224, 960),
    ],
)
def test_a_machine_with_a_tpu_has_the_chips_vcpus_and_memory_that_google_names(
    name: str, family: str, cores: int, chips: int, hbm_gib: int, vcpus: int, memory_gib: int
) -> None:
    host = CATALOG.hosts[name]
    tpu = host.tpu
    assert (tpu.family, tpu.cores, tpu.chips, tpu.hbm_gib) == (family, cores, chips, hbm_gib)
    assert (host.vcpus, host.memory_gib, tpu.hosts) == (vcpus, memory_gib, 1)
    # By its name the API finds it, too.
    assert CATALOG.accelerator(name) == tpu


def test_a_machine_with_a_tpu_boots_from_googles_image_of_its_generation() -> None:
    images = {host.tpu.family: host.image for host in CATALOG.hosts.values()}
    assert {image.partition("/")[0] for image in images.values()} == {
        "ubuntu-os-accelerator-images"
    }
    assert all(family in image for family, image in images.items())
    disks = {host.tpu.family: host.tpu.disk_types[0] for host in CATALOG.hosts.values()}
    assert disks == {
        "v5p": "pd-balanced",
        "v6e": "hyperdisk-balanced",
        "tpu7x": "hyperdisk-balanced",
    }


def test_a_slice_of_machines_has_more_chips_than_one_of_them() -> None:
    for host in CATALOG.hosts.values():
        for topology in host.slices:
            chips = math.prod(map(int, topology.split("x")))
            assert chips > host.tpu.chips
            assert chips % host.tpu.chips == 0


def test_every_generation_has_a_chip() -> None:
    tpus = [*CATALOG.accelerators.values(), *(host.tpu for host in CATALOG.hosts.values())]
    assert set(CATALOG.chips) == {tpu.family for tpu in tpus}


def test_the_number_in_a_types_name_is_its_cores_or_from_v5e_on_its_chips() -> None:
    for tpu in CATALOG.accelerators.values():
        count = tpu.chips if tpu.family in ("v5e", "v6e") else tpu.cores
        assert tpu.name.endswith(f"-{count}")


def test_every_type_that_can_be_a_node_has_a_smallest_block_and_no_other_has() -> None:
    for tpu in CATALOG.accelerators.values():
        assert (tpu.cidr_prefix is not None) == ("node" in tpu.architectures)


def test_a_larger_slice_never_needs_a_smaller_block() -> None:
    for family in ("v2", "v3"):
        tpus = [tpu for tpu in CATALOG.accelerators.values() if tpu.family == family]
        prefixes = [tpu.cidr_prefix or 0 for tpu in sorted(tpus, key=lambda tpu: tpu.cores)]
        assert prefixes == sorted(prefixes, reverse=True)
        assert prefixes[0] == 29


def test_every_entry_has_a_source_with_a_date() -> None:
    sources = [source for tpu in CATALOG.accelerators.values() for source in tpu.sources]
    sources += [source for host in CATALOG.hosts.values() for source in host.tpu.sources]
    sources += [runtime.source for runtime in CATALOG.runtimes.values()]
    sources += [version.source for version in CATALOG.node_versions.values()]
    sources += [machine.source for machine in CATALOG.machine_types.values()]
    sources += CATALOG.network.sources
    sources += [source for chip in CATALOG.chips.values() for source in chip.sources]
    assert all(source.url and source.date.year >= 2019 for source in sources)


def test_runtimes_from_2_15_on_name_their_device_api() -> None:
    for runtime in CATALOG.runtimes.values():
        if runtime.tensorflow:
            minor = int(runtime.tensorflow.split(".")[1])
            assert (minor >= 15) == ("-pjrt" in runtime.name or "-se" in runtime.name)


def test_pod_runtimes_serve_grpc_and_no_other_does() -> None:
    for runtime in CATALOG.runtimes.values():
        assert runtime.serves_grpc == ("-pod" in runtime.name)


def test_memory_of_machine_types_is_googles() -> None:
    memory = {name: machine.memory_gib for name, machine in CATALOG.machine_types.items()}
    assert memory["n1-standard-1"] == 3.75
    assert memory["n1-highmem-2"] == 13
    assert memory["n2-highmem-128"] == 864


def test_releases_whose_libtpu_the_index_lacks_name_the_list_that_has_it() -> None:
    releases = CATALOG.packages.releases("tensorflow-tpu")
    from_list = [version for version, release in releases.items() if release.wheels]
    assert from_list == ["2.18.0", "2.17.1", "2.17.0", "2.16.2", "2.16.1"]
    assert [version for version in releases if version not in from_list] == ["2.20.0", "2.19.1"]
    assert [version for version, release in releases.items() if release.broken] == ["2.20.0"]


def test_what_init_proposes_first_is_documented_for_every_generation_but_one() -> None:
    first = {
        family: next(r for r in CATALOG.runtimes.values() if family in r.families)
        for family in ("v2", "v3", "v4", "v5e", "v5p", "v6e")
    }
    undocumented = [name for name, r in first.items() if r.proof is not Proof.DOCUMENTED]
    assert undocumented == ["v6e"]
    assert not any(r.broken for name, r in first.items() if name != "v6e")


UNUSED = "tpu-vm-tf-2.19.0-pjrt"


def proven(folder: Path, **changes: Any) -> Catalog:
    """Return the catalog with a proof that Google created a TPU VM with `UNUSED`."""
    shutil.copytree(Path(proofs.__file__).parent, folder, dirs_exist_ok=True)
    made = {
        "runtimeVersion": UNUSED,
        "claims": [{"claim": proofs.CREATED, "answer": True}],
    }
    (folder / "proofs").mkdir(exist_ok=True)
    document = {**made, "digest": proofs.digest(made), **changes}
    (folder / "proofs" / "one.json").write_text(json.dumps(document))
    return Catalog(folder)


def test_a_runtime_that_a_proof_created_is_no_longer_inferred(tmp_path: Path) -> None:
    assert CATALOG.runtimes[UNUSED].proof is Proof.INFERRED
    assert proven(tmp_path).runtimes[UNUSED].proof is Proof.USED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"date": "2027-01-01"}, "was edited after the proof"),
        ({"claims": []}, "was edited after the proof"),
        ({"claims": "all true"}, "is not what `tpustack prove` writes"),
        ({"digest": None}, "was edited after the proof"),
    ],
)
def test_an_edited_proof_proves_nothing(tmp_path: Path, changes: Any, why: str) -> None:
    catalog = proven(tmp_path, **changes)
    assert catalog.proofs.refused == {"one.json": why}
    assert catalog.runtimes[UNUSED].proof is Proof.INFERRED


def test_every_proof_in_the_repository_is_as_it_was_written() -> None:
    assert not CATALOG.proofs.refused
