"""The price list: the seeds' figures, newer ones, and what nobody knows."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tpu_infra.catalog import Catalog

CATALOG = Catalog()
PRICES = CATALOG.prices


@pytest.mark.parametrize(
    ("name", "region", "capacity", "hour"),
    [
        ("v2-8", "us-central1", "on-demand", "4.50"),
        ("v2-8", "us-central1", "preemptible", "1.35"),
        ("v2-8", "europe-west4", "on-demand", "4.95"),
        ("v2-8", "europe-west4", "preemptible", "1.485"),
        ("v2-8", "asia-east1", "on-demand", "5.22"),
        ("v2-8", "asia-east1", "preemptible", "1.566"),
        ("v3-8", "us-central1", "on-demand", "8.00"),
        ("v3-8", "us-central1", "preemptible", "2.40"),
        ("v3-8", "us-central1", "spot", "2.04"),
        ("v3-8", "europe-west4", "on-demand", "8.80"),
        ("v3-32", "europe-west4", "spot", "10.56"),
        ("v2-512", "us-central1", "on-demand", "384"),
        ("v3-2048", "europe-west4", "on-demand", "2048"),
        ("v4-8", "us-central2", "on-demand", "12.88"),
        ("v5litepod-8", "us-west4", "spot", "3.84"),
        ("v5p-8", "us-central1", "on-demand", "16.80"),
        ("v6e-1", "europe-west4", "on-demand", "2.97"),
    ],
)
def test_an_hour_of_a_tpu_costs_what_the_source_says(
    name: str, region: str, capacity: str, hour: str
) -> None:
    price = PRICES.tpu(CATALOG.accelerators[name], region, capacity)
    assert price is not None
    assert price.amount == Decimal(hour)


@pytest.mark.parametrize(
    ("name", "region", "spot", "hour"),
    [
        ("n1-standard-1", "us-central1", False, "0.04749975"),
        ("n1-highmem-96", "us-central1", True, "1.545504"),
        ("n2-standard-48", "asia-northeast1", False, "2.990112"),
        ("n2-standard-32", "europe-west4", True, "0.477696"),
        ("e2-standard-4", "us-south1", False, "0.15814696"),
        ("e2-highmem-8", "southamerica-west1", True, "0.129024"),
        ("n1-standard-8", "us-west4", False, "0.42797"),
        ("n2-highcpu-16", "us-central1", True, "0.177072"),
    ],
)
def test_an_hour_of_a_machine_costs_what_the_source_has_for_the_whole_machine(
    name: str, region: str, spot: bool, hour: str
) -> None:
    price = PRICES.machine(CATALOG.machine_types[name], region, spot=spot)
    assert price is not None
    assert price.amount == Decimal(hour)


# No source has a price of v6e in its region.
WITHOUT_A_PRICE = {"us-south1-ai1b"}


def test_every_tpu_has_a_price_on_demand_in_each_of_its_zones() -> None:
    unknown = [
        f"{tpu.name} in {zone}"
        for tpu in CATALOG.accelerators.values()
        for zone in tpu.zones
        if PRICES.tpu(tpu, zone.rpartition("-")[0], "on-demand") is None
    ]
    assert {place.partition(" in ")[2] for place in unknown} == WITHOUT_A_PRICE


def test_what_may_be_taken_away_is_never_dearer() -> None:
    for tpu in CATALOG.accelerators.values():
        for zone in set(tpu.zones) - WITHOUT_A_PRICE:
            region = zone.rpartition("-")[0]
            full = PRICES.tpu(tpu, region, "on-demand")
            for way in ("spot", "preemptible"):
                cheap = PRICES.tpu(tpu, region, way)
                assert full is not None
                assert cheap is None or 0 < cheap.amount < full.amount


def test_a_price_without_a_source_is_unknown_and_not_nothing() -> None:
    v6e, machine = CATALOG.accelerators["v6e-8"], CATALOG.machine_types["n1-standard-2"]
    assert PRICES.tpu(v6e, "southamerica-west1", "spot") is None
    assert PRICES.tpu(v6e, "us-central1", "reserved") is None
    assert PRICES.machine(machine, "us-central2", spot=False) is None
    assert PRICES.disk("pd-ssd", "us-central2") is None
    assert PRICES.storage("us-central2") is None


def test_a_region_is_not_taken_for_another_that_begins_alike() -> None:
    assert PRICES.storage("us-central1") is not None
    assert PRICES.storage("us-central10") is None


def test_the_hour_of_a_gateway_stops_growing_at_thirty_two_machines() -> None:
    nat = PRICES.nat
    assert nat.hour(2).amount == Decimal("0.0078")
    assert nat.hour(31).amount < nat.hour(32).amount == nat.hour(1536).amount == Decimal("0.049")


def test_every_source_has_an_address_and_a_date() -> None:
    assert all(source.url and source.date.year >= 2019 for source in PRICES.sources.values())
