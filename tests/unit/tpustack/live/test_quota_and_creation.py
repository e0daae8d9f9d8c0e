"""`tpustack check --live` and the creation of a TPU count against the same quota."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcloud.app import LocalCloud
from localcloud.core.cloud import SETTING
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines

from .conftest import Live

RUNTIME = {"runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"}
ZONES = {"v3": "europe-west4-a", "v4": "us-central2-b", "v5p": "us-east5-a"}
V5E_ZONE = "us-west4-a"
V5E = "TPUV5s{}Litepod{}PerProjectPerZoneForTPUAPI"
SERVING, TRAINING = V5E.format("", "Serving"), V5E.format("", "")
SPOT_SERVING = V5E.format("Preemptible", "Serving")


@pytest.fixture(autouse=True)
def machines(cloud: LocalCloud) -> Iterator[None]:
    real, fake = cloud.cloud.machines, FakeMachines()
    cloud.cloud.machines = fake
    yield
    cloud.cloud.store.delete(SETTING, "quota")
    fake.suspend_all()
    cloud.cloud.machines = real


@pytest.mark.parametrize(
    ("kind", "spot", "quota", "fits"),
    [
        # Recorded: "Quota limit 'TPUV5sLitepodServingPerProjectPerZoneForTPUAPI' has been
        # exceeded. Limit: 4" for a v5litepod-8, in a project with quota for training.
        ("v5litepod-8", False, {SERVING: 4, TRAINING: 512}, False),
        ("v5litepod-4", False, {SERVING: 4, TRAINING: 0}, True),
        ("v5litepod-1", True, {SPOT_SERVING: 0, SERVING: 8}, False),
        ("v5litepod-16", False, {SERVING: 512, TRAINING: 8}, False),
        ("v5litepod-16", False, {SERVING: 0, TRAINING: 16}, True),
        ("v4-8", True, {"TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI": 0}, False),
        ("v4-8", True, {"TPUV4sPreemptiblePodPerProjectPerZoneForTPUAPI": 8}, True),
        ("v3-32", False, {"TPUV3sPerProjectPerZoneForTPUAPI": 0}, True),
        ("v3-32", False, {"TPUV3sPodPerProjectPerZoneForTPUAPI": 8}, False),
        ("v5p-8", False, {"TPUV5PPerProjectPerZoneForTPUAPI": 4}, False),
    ],
)
def test_what_the_check_says_of_a_quota_is_what_the_creation_answers(
    live: Live,
    cloud: LocalCloud,
    api: Client,
    kind: str,
    spot: bool,
    quota: dict[str, int],
    fits: bool,
) -> None:
    cloud.cloud.store.put(SETTING, "quota", quota)
    zone = ZONES.get(kind.partition("-")[0], V5E_ZONE)
    tpu = {"acceleratorType": kind, **RUNTIME}
    capacity = "spot" if spot else "on-demand"
    _, found = live("TPU quota", zone=zone, tpu={**tpu, "capacity": capacity})
    state, said = found["TPU quota"]
    assert state == ("ok" if fits else "wrong"), said
    nodes = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/{zone}/nodes"
    body = {**tpu, "schedulingConfig": {"spot": spot}}
    if not fits:
        error = api.post(nodes, body, nodeId="tpu", status=429)["error"]
        (limit,) = [name for name in quota if name in error["message"]]
        description = error["details"][0]["violations"][0]["description"]
        assert description == f"Quota '{limit}' exhausted. Limit {quota[limit]} in zone {zone}"
        return
    api.post(nodes, body, nodeId="tpu")
    api.delete(f"{nodes}/tpu")


def test_tpus_that_stand_hold_the_quota_that_they_draw_on(
    live: Live, cloud: LocalCloud, api: Client
) -> None:
    cloud.cloud.store.put(SETTING, "quota", {SERVING: 4, TRAINING: 16})
    tpu = {"acceleratorType": "v5litepod-16", **RUNTIME}
    nodes = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/{V5E_ZONE}/nodes"
    api.post(nodes, tpu, nodeId="of-others")
    states = {
        kind: live("TPU quota", zone=V5E_ZONE, tpu={**tpu, "acceleratorType": kind})[1]
        for kind in ("v5litepod-4", "v5litepod-16")
    }
    api.delete(f"{nodes}/of-others")
    assert states["v5litepod-4"]["TPU quota"][0] == "ok"
    assert states["v5litepod-16"]["TPU quota"][0] == "warning"
