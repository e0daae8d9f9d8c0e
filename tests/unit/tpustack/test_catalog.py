"""`tpustack catalog`: what there is, where, and what it costs."""

from __future__ import annotations

import json

import pytest

from tpu_infra.catalog import Catalog

from .conftest import Run

CATALOG = Catalog()


def words(line: str) -> str:
    """The line with one blank between words."""
    return " ".join(line.split())


def test_without_a_filter_every_zone_has_its_families(run: Run) -> None:
    done = run("catalog")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].split() == ["zone", "family", "types"]
    zones = {zone for tpu in CATALOG.accelerators.values() for zone in tpu.zones}
    assert {line.split()[0] for line in lines[1:]} == zones
    assert "us-central2-b         v4      v4-8 to v4-8192" in lines


def test_a_zone_has_its_types_with_what_they_are_made_of_and_cost(run: Run) -> None:
    lines = run("catalog", "--zone", "us-central1-b").out.splitlines()
    assert lines[0].split()[:7] == ["type", "zone", "topology", "chips", "cores", "hosts", "HBM"]
    assert words(lines[1]) == "v2-8 us-central1-b 2x2 4 8 1 64 /29 $4.5000 $1.3500"
    assert words(lines[2]) == "v3-8 us-central1-b 2x2 4 8 1 128 /29 $8.0000 $2.0400"
    assert len({line.index(line.split()[2]) for line in lines}) == 1
    assert {line.split()[1] for line in lines[1:]} == {"us-central1-b"}


def test_a_type_lists_every_zone_that_has_it(run: Run) -> None:
    lines = run("catalog", "accelerators", "--type", "v3-8").out.splitlines()
    assert {line.split()[1] for line in lines[1:]} == set(CATALOG.accelerators["v3-8"].zones)


def test_machine_types_of_compute_engine_are_tpus_as_well(run: Run) -> None:
    lines = run("catalog", "--type", "tpu7x").out.splitlines()
    assert words(lines[1]) == "tpu7x-standard-4t us-central1-c 2x2x1 4 8 1 768 - unknown unknown"
    priced = run("catalog", "--type", "ct6e-standard-4t", "--zone", "us-east5-a").out.splitlines()
    assert " ".join(priced[1].split()[:-1]).endswith("2x2 4 4 1 128 - $10.8000")


def test_a_price_without_a_source_is_unknown(run: Run) -> None:
    lines = run("catalog", "--type", "v6e-8", "--zone", "southamerica-west1-a").out.splitlines()
    assert lines[1].split()[-2:] == ["$21.6000", "unknown"]


def test_runtimes_of_a_type_are_those_that_run_on_its_family(run: Run) -> None:
    lines = run("catalog", "runtimes", "--type", "v6e-8").out.splitlines()
    assert len(lines) > 2
    assert all("v6e" in line for line in lines[1:])
    names = run("catalog", "runtimes", "--type", "v2").out
    assert "tpu-vm-tf-2.18.0-pod-se" in names
    assert "2.12.1" in names


def test_machines_have_a_price_where_a_zone_is_named(run: Run) -> None:
    with_zone = run("catalog", "machines", "--type", "n2-highmem", "--zone", "europe-west4-a").out
    assert with_zone.splitlines()[0].split() == ["machine", "vCPUs", "GiB", "on", "demand", "spot"]
    assert "n2-highmem-8        8   64    $0.5769  $0.1612" in with_zone
    without = run("catalog", "machines", "--type", "n2-highmem").out
    assert "$" not in without


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        (
            "accelerators",
            {
                "name",
                "family",
                "topology",
                "chips",
                "cores",
                "hosts",
                "hbmGib",
                "architectures",
                "cidrPrefix",
                "zones",
                "sources",
            },
        ),
        ("runtimes", {"name", "tensorflow", "architecture", "servesGrpc", "proof", "families"}),
        ("machines", {"name", "vcpus", "memoryGib"}),
    ],
)
def test_json_has_the_same_fields_in_every_record(table: str, fields: set[str], run: Run) -> None:
    records = json.loads(run("catalog", table, "--json").out)[table]
    assert len(records) > 10
    assert all(set(record) == fields for record in records)


def test_the_whole_catalog_is_in_json(run: Run) -> None:
    records = json.loads(run("catalog", "--json").out)["accelerators"]
    assert [record["name"] for record in records] == list(CATALOG.accelerators)
    (v2,) = [record for record in records if record["name"] == "v2-8"]
    assert v2["zones"][0] == {"zone": "us-central1-b", "onDemand": "4.5", "spot": "1.35"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nosuch", "'nosuch' is not one of 'accelerators', 'runtimes', 'machines'"),
        ("--zone us-central1", '--zone: "us-central1" is a region, not a zone. Use us-central1-'),
        ("--type v9", '--type: "v9" is nothing that the catalog\'s accelerators have.'),
        ("machines --type v2-8", '"v2-8" is nothing that the catalog\'s machines have.'),
        ("--zone us-central2-b --type v2-8", '--zone: "us-central2-b" has no v2-8.'),
    ],
)
def test_wrong_arguments_are_refused_with_one_message(
    arguments: str, message: str, run: Run
) -> None:
    done = run("catalog", *arguments.split())
    assert done.code == 2
    assert message in done.err
    assert done.out == ""
