"""Which of Google's quota metrics counts for a TPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tpu_infra.catalog import Catalog
from tpu_infra.checks.context import Context
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack import live
from tpustack.cloud.google import Google
from tpustack.live import Finding, Target


class Metrics:
    """Answers with metrics that have one limit in one place, and with no TPUs that stand."""

    def __init__(self, place: dict[str, str], **limits: int) -> None:
        self.place = place
        self.limits = limits

    def get(self, url: str, *_: object) -> dict[str, str]:
        return {"state": "ENABLED"}

    def pages(self, url: str, field: str, *_: object) -> Iterator[dict[str, Any]]:
        for name, limit in self.limits.items() if field == "metrics" else ():
            default = {"effectiveLimit": "0"}
            here = {"effectiveLimit": str(limit), "dimensions": self.place}
            metric = f"tpu.googleapis.com/{name.replace('_', '-')}"
            yield {"metric": metric, "consumerQuotaLimits": [{"quotaBuckets": [default, here]}]}


def found(google: Metrics, tpu: str, capacity: str, slices: int = 1) -> Finding:
    config = {
        "gcp:project": "some-project",
        "tpu-stack:zone": "us-west4-a",
        "tpu-stack:tpu": {"acceleratorType": tpu, "capacity": capacity, "slices": slices},
    }
    settings = parse(config, "night")
    context = Context("night", Path(), Catalog(), names_of(settings, "night"))
    (finding,) = live.tpu(Target(cast(Google, google), settings, context))
    return finding


ZONE = {"zone": "us-west4-a"}


@pytest.mark.parametrize(
    ("tpu", "capacity", "slices", "limits", "state"),
    [
        ("v5litepod-8", "on-demand", 1, {"tpu_v5s_litepod_serving": 8}, "ok"),
        ("v5litepod-8", "on-demand", 2, {"tpu_v5s_litepod_serving": 8}, "wrong"),
        ("v5litepod-8", "spot", 1, {"tpu_v5s_litepod_serving": 8}, "unknown"),
        ("v5litepod-16", "spot", 1, {"tpu_v5s_litepod_preemptible": 16}, "ok"),
        # Small v5e TPUs draw on the quota for serving, whatever there is for training.
        (
            "v5litepod-8",
            "spot",
            1,
            {"tpu_v5s_litepod_preemptible": 1536, "tpu_v5s_litepod_serving_preemptible": 4},
            "wrong",
        ),
        ("v5litepod-8", "reserved", 1, {"tpu_v5s_litepod_serving_reserved": 8}, "ok"),
        ("v4-8", "spot", 1, {"tpu_v4s_preemptible": 8}, "ok"),
        ("v4-16", "spot", 1, {"tpu_v4s_pod_preemptible": 8}, "wrong"),
        # Slices of several hosts of v2 and v3 have quotas of their own.
        ("v3-32", "on-demand", 1, {"tpu_v3": 999}, "unknown"),
        ("v3-32", "on-demand", 1, {"tpu_v3_pod": 32}, "ok"),
        ("v6e-8", "on-demand", 1, {"tpu_v6e": -1}, "ok"),
    ],
)
def test_the_metric_of_the_generation_and_capacity_counts(
    tpu: str, capacity: str, slices: int, limits: dict[str, int], state: str
) -> None:
    assert found(Metrics(ZONE, **limits), tpu, capacity, slices).state == state


def test_a_limit_for_the_region_counts_and_one_for_another_zone_does_not() -> None:
    region = Metrics({"region": "us-west4"}, tpu_v5s_litepod_serving=8)
    assert found(region, "v5litepod-8", "on-demand").state == "ok"
    other = Metrics({"zone": "us-west4-b"}, tpu_v5s_litepod_serving=8)
    finding = found(other, "v5litepod-8", "on-demand")
    assert (finding.state, "is 0 in us-west4-a" in finding.said) == ("wrong", True)


class TwoLimits(Metrics):
    """Has a limit for the zone and one for the region of the same metric."""

    def pages(self, url: str, field: str, *_: object) -> Iterator[dict[str, Any]]:
        for metric in super().pages(url, field):
            (zone,) = metric["consumerQuotaLimits"]
            region = {"dimensions": {"region": "us-west4"}, "effectiveLimit": "0"}
            yield {**metric, "consumerQuotaLimits": [{"quotaBuckets": [region]}, zone]}


def test_of_the_limits_of_a_metric_the_lowest_counts() -> None:
    # "Limit: 0 in region us-east5", with quota in the zone: marin-community/marin, pull 1612
    finding = found(TwoLimits(ZONE, tpu_v5s_litepod_serving=8), "v5litepod-8", "on-demand")
    assert (finding.state, "is 0 in us-west4, 8 needed" in finding.said) == ("wrong", True)


def test_of_several_metrics_that_fit_the_lowest_counts_and_all_are_named() -> None:
    finding = found(Metrics(ZONE, tpu_v6e=-1, tpu_cores_v6e=4), "v6e-8", "on-demand")
    assert (finding.state, finding.said) == (
        "wrong",
        "tpu-v6e is unlimited in us-west4-a, tpu-cores-v6e is 4 in us-west4-a, 8 needed",
    )
