"""Google's own Python client against the TPU API."""

from __future__ import annotations

from typing import Any

import httplib2  # type: ignore[import-untyped]
import pytest
import requests
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from localcloud.core.cloud import Cloud
from tests.unit.localcloud.fake_machines import FakeMachines

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
VM = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}


class ProxiedHttp:
    """httplib2 speaks to a proxy only where PySocks is installed; requests always does."""

    def __init__(self, session: requests.Session) -> None:
        self._session = session

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **_: Any
    ) -> tuple[httplib2.Response, bytes]:
        sent = self._session.request(method, uri, data=body, headers=headers, timeout=30)
        answer = httplib2.Response(dict(sent.headers))
        answer.status = sent.status_code
        return answer, sent.content


def client(session: requests.Session, version: str) -> Any:
    return build("tpu", version, http=ProxiedHttp(session)).projects().locations()


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_a_vm_and_a_queued_resource_come_and_go(
    session: requests.Session, machines: FakeMachines, version: str
) -> None:
    locations = client(session, version)
    made = locations.nodes().create(parent=PARENT, nodeId="t", body=VM).execute()
    done = locations.operations().get(name=made["name"]).execute()
    assert done["response"]["state"] == "READY"
    spec = {"parent": PARENT, "nodeId": "q", "node": VM}
    queued = locations.queuedResources()
    body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
    queued.create(parent=PARENT, queuedResourceId="q", body=body).execute()
    listed = queued.list(parent=PARENT).execute()["queuedResources"]
    assert [one["state"]["state"] for one in listed] == ["ACTIVE"]
    with pytest.raises(HttpError, match="ACTIVE"):
        queued.delete(name=f"{PARENT}/queuedResources/q").execute()
    queued.delete(name=f"{PARENT}/queuedResources/q", force=True).execute()
    locations.nodes().delete(name=f"{PARENT}/nodes/t").execute()
    assert locations.nodes().list(parent=PARENT).execute() == {}


def test_a_classic_node_comes_and_goes(
    session: requests.Session, cloud: Cloud, machines: FakeMachines
) -> None:
    cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
    locations = client(session, "v1")
    body = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}
    locations.nodes().create(parent=PARENT, nodeId="t", body=body).execute()
    node = locations.nodes().get(name=f"{PARENT}/nodes/t").execute()
    assert node["ipAddress"] == "127.0.0.1"
    locations.nodes().delete(name=node["name"]).execute()
    with pytest.raises(HttpError, match="was not found"):
        locations.nodes().get(name=node["name"]).execute()
