"""A TPU that may be in several zones: each is asked about, and what one lacks hides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tpu_infra.catalog import Catalog
from tpu_infra.checks.context import Context
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack import live, live as quota
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.live import Finding, Question, Target

B, C, F = "us-central1-b", "us-central1-c", "us-central1-f"
RUNTIME = "tpu-vm-tf-2.16.1-pod-se"
METRIC = "tpu-v2-preemptible"


class Zones:
    """A Google whose zones differ: each has a quota; those of `bare` have no TPUs at all."""

    def __init__(self, b: int, c: int, f: int, *, bare: str = "", standing: int = 0) -> None:
        self.bare, self.standing, self.quotas = bare, standing, {B: b, C: c, F: f}

    def get(self, *_: object) -> dict[str, str]:
        return {"state": "ENABLED"}

    def pages(self, url: str, field: str, *_: object) -> Iterator[dict[str, Any]]:
        if field == "metrics":
            yield self._metric()
        elif self.bare and f"/{self.bare}/" in url:
            raise NotFound(f"{url} answers 404: no such location")
        elif field == "nodes":
            node = {"name": "nodes/other", "acceleratorType": f"v2-{self.standing}"}
            yield from [node] if self.standing and f"/{C}/" in url else []
        else:
            yield {"type": "v2-8", "version": RUNTIME}

    def _metric(self) -> dict[str, Any]:
        buckets = [
            {"effectiveLimit": str(limit), "dimensions": {"zone": zone}}
            for zone, limit in self.quotas.items()
        ]
        limits = [{"quotaBuckets": [{"effectiveLimit": "0"}, *buckets]}]
        return {"metric": f"tpu.googleapis.com/{METRIC}", "consumerQuotaLimits": limits}


def ask(question: Question, google: Zones) -> list[Finding]:
    config = {
        "gcp:project": "some-project",
        "tpu-stack:zone": B,
        "tpu-stack:tpu": {
            "acceleratorType": "v2-8",
            "runtimeVersion": RUNTIME,
            "capacity": "spot",
            "queued": {"fallbackZones": [C, F]},
        },
    }
    settings = parse(config, "night")
    context = Context("night", Path(), Catalog(), names_of(settings, "night"))
    return list(question(Target(cast(Google, google), settings, context)))


def states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


def test_each_zone_has_its_own_line_of_quota() -> None:
    found = ask(quota.tpu, Zones(8, 16, -1))
    assert [finding.said for finding in found] == [
        f"{METRIC} is 8 in {B}, 8 needed",
        f"{METRIC} is 16 in {C}, 8 needed",
        f"{METRIC} is unlimited in {F}",
    ]
    assert states(found) == ["ok"] * 3


@pytest.mark.parametrize(("quotas", "zone"), [((0, 8, 8), B), ((8, 0, 8), C), ((8, 8, 0), F)])
def test_a_zone_without_quota_is_a_warning_while_another_has_some(
    quotas: tuple[int, int, int], zone: str
) -> None:
    found = ask(quota.tpu, Zones(*quotas))
    (bad,) = [finding for finding in found if finding.state != "ok"]
    said = f"{METRIC} is 0 in {zone}, 8 needed: pulumi up tries another zone"
    assert (bad.state, bad.said) == ("warning", said)
    setting = "zone" if zone == B else "tpu.queued.fallbackZones"
    assert bad.cure.startswith("Ask for more at https://console.cloud.google.com/iam-admin/quotas")
    assert f"or change {setting}, type or tpu.capacity" in bad.cure


def test_quota_in_no_zone_is_wrong_in_each() -> None:
    found = ask(quota.tpu, Zones(0, 4, 0))
    assert states(found) == ["wrong"] * 3
    assert found[1].said == f"{METRIC} is 4 in {C}, 8 needed"


def test_what_stands_in_a_zone_takes_quota_of_that_zone_alone() -> None:
    found = ask(quota.tpu, Zones(8, 8, 8, standing=8))
    assert states(found) == ["ok", "warning", "ok"]
    assert found[1].said.endswith("TPUs of this kind that stand there hold 8")


def test_a_zone_that_google_does_not_know_hides_nothing_of_the_others() -> None:
    nowhere = Zones(8, 8, 8, bare=C)
    assert states(ask(quota.tpu, nowhere)) == ["ok"] * 3
    for question in (live.accelerator_type, live.software):
        found = ask(question, nowhere)
        assert states(found) == ["ok", "wrong", "ok"]
        assert found[1].said == f"{C} offers no TPUs"
        assert found[1].cure == "Change tpu.queued.fallbackZones"


def test_an_ai_zone_that_google_hides_has_a_cure_of_its_own() -> None:
    class Hidden:
        def get(self, *_: object) -> dict[str, str]:
            return {"state": "ENABLED"}

        def pages(self, url: str, *_: object) -> Iterator[dict[str, Any]]:
            said = f"Location {url.split('/')[-2]} is not found or access is unauthorized."
            raise Forbidden(f"{url} answers 403: {said}")

    tpu = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    [finding] = live.accelerator_type(in_ai_zone(Hidden(), tpu))
    assert finding.said == "us-central1-ai1a offers no TPUs"
    assert "preview-features update ai-zones-visibility" in finding.cure


def test_so_has_one_without_the_machine_type() -> None:
    class Hidden:
        def get(self, url: str) -> dict[str, str]:
            if "/machineTypes/" in url:
                raise NotFound(f"{url} answers 404")
            return {"state": "ENABLED"}

    tpu = {"acceleratorType": "tpu7x-standard-4t"}
    [finding] = live.machine_type(in_ai_zone(Hidden(), tpu, architecture="compute"))
    assert finding.said == "us-central1-ai1a has no tpu7x-standard-4t"
    assert "preview-features update ai-zones-visibility" in finding.cure
    # A zone that shows its machines may lack this one.
    assert finding.cure.endswith("`, or set tpu.acceleratorType to another one")


def in_ai_zone(google: object, tpu: dict[str, str], **settings: str) -> Target:
    named = {f"tpu-stack:{name}": value for name, value in settings.items()}
    place = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-ai1a"}
    made = parse({**place, **named, "tpu-stack:tpu": tpu}, "night")
    context = Context("night", Path(), Catalog(), names_of(made, "night"))
    return Target(cast(Google, google), made, context)
