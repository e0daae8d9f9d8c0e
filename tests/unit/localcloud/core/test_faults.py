from __future__ import annotations

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Fault
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines

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
    local_cloud.stop()
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


OBJECTS = f"{BUCKETS}/lost-answers/o"
NODES = "tpu.googleapis.com/v2/projects/tpu-stack-local/locations/us-central1-b"
VM = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}


def lose(cloud: Cloud, method: str, status: int = 0) -> None:
    cloud.faults.add(Fault(method, status=status, count=1, carried_out=True))


class TestALostAnswer:
    @pytest.fixture
    def enabled_apis(self) -> tuple[str, ...]:
        return ("tpu.googleapis.com",)

    @pytest.fixture
    def api(self, local_cloud: LocalCloud) -> Client:
        """One through the port: what is lost is a connection."""
        return Client(local_cloud)

    def test_closes_the_connection_once_an_object_is_uploaded(
        self, api: Client, cloud: Cloud
    ) -> None:
        api.post(BUCKETS, {"name": "lost-answers"}, project="tpu-stack-local")
        url = "https://storage.googleapis.com/upload/storage/v1/b/lost-answers/o"
        query = {"uploadType": "media", "name": "mark", "ifGenerationMatch": "0"}
        lose(cloud, "storage.objects.insert")
        with pytest.raises(requests.ConnectionError):
            api.session.post(url, params=query, data=b"1" * 100_000)
        assert api.get(f"{OBJECTS}/mark")["size"] == "100000"
        assert api.session.post(url, params=query, data=b"2").status_code == 412

    def test_may_be_another_in_its_place(self, api: Client, cloud: Cloud) -> None:
        lose(cloud, "storage.buckets.insert", 503)
        new = {"name": "lost-answers"}
        api.post(BUCKETS, new, status=503, project="tpu-stack-local")
        api.post(BUCKETS, new, status=409, project="tpu-stack-local")

    def test_a_lost_answer_leaves_the_tpu_call_done(
        self, api: Client, cloud: Cloud, machines: FakeMachines
    ) -> None:
        lose(cloud, "tpu.projects.locations.nodes.create")
        with pytest.raises(requests.ConnectionError):
            api.post(f"{NODES}/nodes", VM, nodeId="t")
        assert api.get(f"{NODES}/nodes/t")["state"] == "READY"
        (operation,) = api.get(f"{NODES}/operations")["operations"]
        lose(cloud, "tpu.projects.locations.operations.get")
        with pytest.raises(requests.ConnectionError):
            api.get(f"tpu.googleapis.com/v2/{operation['name']}")
        assert api.get(f"tpu.googleapis.com/v2/{operation['name']}")["done"]
        lose(cloud, "tpu.projects.locations.nodes.delete")
        with pytest.raises(requests.ConnectionError):
            api.delete(f"{NODES}/nodes/t")
        api.get(f"{NODES}/nodes/t", status=404)

    def test_is_not_that_of_a_call_that_is_refused(self, api: Client, cloud: Cloud) -> None:
        lose(cloud, "storage.objects.*")
        api.get(f"{OBJECTS}/none", status=404)
        assert len(cloud.faults.items()) == 1

    def test_is_logged(self, api: Client, cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "localcloud.requests")
        lose(cloud, "cloudresourcemanager.projects.get")
        with pytest.raises(requests.ConnectionError):
            api.get(PROJECT)
        assert "lost cloudresourcemanager.projects.get GET" in caplog.text
