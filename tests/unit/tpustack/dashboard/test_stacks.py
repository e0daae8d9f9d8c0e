"""Stacks on the page: what they cost."""

from __future__ import annotations

from infra.catalog import Catalog
from tests.unit.tpustack.dashboard.conftest import a_stack
from tpustack.dashboard.sources import Place, stack


def test_a_stack_has_its_price_an_hour_and_a_bucket_has_none() -> None:
    known = stack(a_stack("dev"), Catalog())
    assert float(known["hour"]) > 1
    assert (known["isStack"], known["tpu"], known["zone"]) == (True, "v2-8", "us-central1-b")
    assert stack(Place("b", "b"), Catalog())["isStack"] is False
