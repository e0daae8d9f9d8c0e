from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.core.faults import Fault
from localcloud.testing import Client

PROJECT = "cloudresourcemanager.googleapis.com/v1/projects/tpu-stack-local"
BUCKETS = "storage.googleapis.com/storage/v1/b"


def test_a_fault_hits_the_methods_and_resources_that_fit(api: Client, cloud: Cloud) -> None:
    cloud.faults.add(Fault("cloudresourcemanager.*", resource="*/tpu-stack-local", status=500))
    error = api.get(PROJECT, status=500)["error"]
    assert "injected fault" in error["message"]
    api.get(BUCKETS, project="tpu-stack-local")
    cloud.faults.clear()
    api.get(PROJECT)


def test_a_fault_is_used_up_after_its_count_and_begins_after_its_skips(
    api: Client, cloud: Cloud
) -> None:
    fault = Fault("*.projects.get", status=429, message="slow down", skip=1, count=2)
    cloud.faults.add(fault)
    api.get(PROJECT)
    assert api.get(PROJECT, status=429)["error"]["message"] == "slow down"
    api.get(PROJECT, status=429)
    api.get(PROJECT)
    assert cloud.faults.items() == []


def test_a_slow_call_takes_its_time_and_goes_through(
    api: Client, cloud: Cloud, clock: VirtualClock
) -> None:
    cloud.faults.add(Fault("*.projects.get", status=0, delay=30))
    before = clock.now()
    api.get(PROJECT)
    assert clock.now() == before + 30


def test_a_fault_hits_by_chance(api: Client, cloud: Cloud) -> None:
    cloud.faults.add(Fault("*.projects.get", probability=0.5))
    statuses = {api.session.get(f"https://{PROJECT}").status_code for _ in range(40)}
    assert statuses == {200, 503}


def test_faults_survive_a_restart(local_cloud: LocalCloud, clock: VirtualClock) -> None:
    local_cloud.cloud.faults.add(Fault("*.projects.get", count=5))
    again = LocalCloud(local_cloud.cloud.home, clock=clock)
    again.start()
    Client(again).get(PROJECT, status=503)
    again.stop()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("*", status=200),
        Fault("*", status=0),
        Fault("*", probability=0.0),
        Fault("*", delay=-1.0),
        Fault("*", count=-1),
    ],
)
def test_a_fault_that_makes_no_sense_says_so(fault: Fault) -> None:
    assert fault.problems()
