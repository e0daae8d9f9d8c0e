"""Google's TPU clients, which speak gRPC unless they are told otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core.exceptions import (
    AlreadyExists,
    FailedPrecondition,
    Forbidden,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceUnavailable,
)
from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.common import OperationMetadata

from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud, Fault
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.localcloud.grpc.conftest import Channel

HOST = "tpu.googleapis.com"
PARENT = "projects/tpu-stack-local/locations/us-central1-b"
RUNTIME = "tpu-vm-tf-2.17.0-pod-pjrt"
VM = {"accelerator_type": "v2-8", "runtime_version": RUNTIME}


def client(module: Any, channel: Channel, **who: str) -> Any:
    transport = module.services.tpu.transports.TpuGrpcTransport(channel=channel(HOST, **who))
    return module.TpuClient(transport=transport)


@pytest.fixture(params=[tpu_v2, tpu_v2alpha1], ids=["v2", "v2alpha1"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def tpus(module: Any, channel: Channel, machines: FakeMachines) -> Any:
    return client(module, channel)


def test_a_vm_is_made_changed_and_deleted_through_operations(tpus: Any) -> None:
    node = VM | {"labels": {"team": "a"}, "scheduling_config": {"spot": True}}
    made = tpus.create_node(parent=PARENT, node_id="t", node=node).result(timeout=60)
    assert made.name == f"{PARENT}/nodes/t"
    assert made.state.name == "READY"
    assert made.accelerator_config.topology == "2x2"
    assert made.accelerator_config.type_.name == "V2"
    assert made.scheduling_config.spot
    changed = {"name": made.name, "labels": {"team": "b"}}
    tpus.update_node(node=changed, update_mask="labels").result(timeout=60)
    assert dict(tpus.get_node(name=made.name).labels) == {"team": "b"}
    tpus.delete_node(name=made.name).result(timeout=60)
    assert list(tpus.list_nodes(parent=PARENT)) == []


@pytest.mark.parametrize("latency", ["real"])
def test_an_operation_is_asked_about_until_it_is_done(tpus: Any, clock: VirtualClock) -> None:
    clock.advance(600)  # The API was enabled a moment ago.
    operation = tpus.create_node(parent=PARENT, node_id="t", node=VM)
    assert not operation.done()
    assert tpus.get_node(name=f"{PARENT}/nodes/t").state.name == "CREATING"
    clock.advance(3600)
    assert operation.done()
    assert operation.result(timeout=60).state.name == "READY"


def test_an_operation_that_fails_raises_its_error(tpus: Any, cloud: Cloud) -> None:
    cloud.store.put("setting", "stockout", {"us-central1-b": ["v2-8"]})
    with pytest.raises(ResourceExhausted, match="no more capacity"):
        tpus.create_node(parent=PARENT, node_id="t", node=VM).result(timeout=60)


def test_lists_come_in_pages_that_the_client_joins(tpus: Any) -> None:
    for number in range(5):
        tpus.create_node(parent=PARENT, node_id=f"t{number}", node=VM).result(timeout=60)
    pages = tpus.list_nodes(request={"parent": PARENT, "page_size": 2})
    assert [len(page.nodes) for page in pages.pages] == [2, 2, 1]
    joined = tpus.list_nodes(request={"parent": PARENT, "page_size": 2})
    assert [node.name[-2:] for node in joined] == ["t0", "t1", "t2", "t3", "t4"]


def test_a_queued_resource_becomes_active_and_is_deleted_with_force(tpus: Any, module: Any) -> None:
    spec = {"parent": PARENT, "node_id": "q", "node": VM}
    queued = {"tpu": {"node_spec": [spec]}, "spot": {}}
    tpus.create_queued_resource(
        parent=PARENT, queued_resource_id="q", queued_resource=queued
    ).result(timeout=60)
    name = f"{PARENT}/queuedResources/q"
    assert tpus.get_queued_resource(name=name).state.state.name == "ACTIVE"
    with pytest.raises(FailedPrecondition, match="ACTIVE"):
        tpus.delete_queued_resource(name=name)
    tpus.delete_queued_resource(
        request=module.DeleteQueuedResourceRequest(name=name, force=True)
    ).result(timeout=60)


def test_an_error_comes_with_its_status_and_its_details(channel: Channel, tpus: Any) -> None:
    tpus.create_node(parent=PARENT, node_id="t", node=VM).result(timeout=60)
    with pytest.raises(AlreadyExists, match="already exists"):
        tpus.create_node(parent=PARENT, node_id="t", node=VM)
    with pytest.raises(NotFound, match="nodes/gone' was not found"):
        tpus.get_node(name=f"{PARENT}/nodes/gone")
    with pytest.raises(InvalidArgument, match="100%é"):
        tpus.create_node(parent=PARENT, node_id="100%é", node=VM)
    with pytest.raises(InvalidArgument, match="pattern"):
        tpus.get_node(name="nonsense")


def test_callers_without_permission_get_googles_reason(
    module: Any, channel: Channel, machines: FakeMachines
) -> None:
    stranger = client(module, channel, member="user:stranger@example.com")
    with pytest.raises(Forbidden) as refused:
        stranger.list_nodes(parent=PARENT)
    assert refused.value.reason == "IAM_PERMISSION_DENIED"
    assert refused.value.metadata["permission"] == "tpu.nodes.list"
    monitoring = "https://www.googleapis.com/auth/monitoring"
    with pytest.raises(Forbidden) as refused:
        client(module, channel, scope=monitoring).list_nodes(parent=PARENT)
    assert refused.value.reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


def test_methods_shared_by_all_versions_are_served(tpus: Any, module: Any) -> None:
    operation = tpus.create_node(parent=PARENT, node_id="t", node=VM)
    asked = tpus.get_operation({"name": operation.operation.name})
    made = module.Node()
    assert asked.response.Unpack(module.Node.pb(made))
    assert made.state.name == "READY"
    about = OperationMetadata()
    assert asked.metadata.Unpack(OperationMetadata.pb(about))
    assert (about.verb, about.target) == ("create", f"{PARENT}/nodes/t")
    places = tpus.list_locations({"name": "projects/tpu-stack-local"}).locations
    assert "us-central1-b" in [place.location_id for place in places]


def test_a_lost_answer_breaks_the_connection_and_the_call_has_taken_effect(
    tpus: Any, cloud: Cloud
) -> None:
    lost = Fault("tpu.projects.locations.nodes.create", status=0, count=1, carried_out=True)
    cloud.faults.add(lost)
    with pytest.raises(ServiceUnavailable):
        tpus.create_node(parent=PARENT, node_id="t", node=VM, timeout=60)
    assert tpus.get_node(name=f"{PARENT}/nodes/t").state.name == "READY"


def test_messages_larger_than_what_http2_sends_unasked_come_whole(tpus: Any) -> None:
    script = "x" * 500_000
    node = VM | {"metadata": {"startup-script": script}}
    tpus.create_node(parent=PARENT, node_id="t", node=node).result(timeout=60)
    assert tpus.get_node(name=f"{PARENT}/nodes/t").metadata["startup-script"] == script
