from __future__ import annotations

import pytest

from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Latency
from tests.unit.localcloud.instances.conftest import Instances


@pytest.fixture
def latency() -> Latency:
    return "real"


@pytest.fixture
def clock() -> VirtualClock:
    """Only the operations are waited for here: no machine does anything."""
    return VirtualClock()


@pytest.mark.server
def test_an_instance_is_provisioned_then_runs_and_stops_in_its_own_time(
    instances: Instances, clock: VirtualClock, cloud: Cloud
) -> None:
    cloud.store.put("setting", "grace", {"stop": 1, "preempt": 1})
    operation = instances.insert()
    assert operation["status"] == "RUNNING"
    assert instances.get()["status"] == "PROVISIONING"
    assert cloud.machines.processes() == []
    clock.advance(60)
    assert instances.get()["status"] == "RUNNING"
    assert cloud.machines.processes()
    instances.post("stop")
    assert instances.get()["status"] == "STOPPING"
    instances.post("start", status=400)
    clock.advance(60)
    assert instances.get()["status"] == "TERMINATED"
    assert cloud.machines.processes() == []


@pytest.mark.server
def test_an_instance_deleted_while_it_is_provisioned_goes_away(
    instances: Instances, clock: VirtualClock, cloud: Cloud
) -> None:
    cloud.store.put("setting", "grace", {"stop": 1, "preempt": 1})
    instances.insert()
    instances.delete()
    assert instances.get()["status"] == "STOPPING"
    clock.advance(120)
    instances.get(status=404)
    assert cloud.machines.processes() == []
