"""What an instance wrote is in Cloud Logging, also when the instance is deleted."""

from __future__ import annotations

import pytest

from localcloud.core import projects
from tests.patience import until
from tests.unit.localcloud.instances.conftest import ZONE, Instances

pytestmark = pytest.mark.server


def test_a_deleted_instances_output_is_still_there(instances: Instances) -> None:
    metadata = {"startup-script": "echo trained", "serial-port-logging-enable": "true"}
    items = [{"key": key, "value": value} for key, value in metadata.items()]
    instances.insert(metadata={"items": items})
    number = instances.get()["id"]
    port = f"{ZONE}/instances/vm/serialPort"
    until(lambda: "trained" in instances.api.get(port)["contents"])
    instances.delete()
    instances.get(status=404)
    body = {
        "resourceNames": [f"projects/{projects.DEFAULT_PROJECT}"],
        "filter": 'labels."compute.googleapis.com/resource_name"="vm" AND textPayload:trained',
    }
    (entry,) = instances.api.post("logging.googleapis.com/v2/entries:list", body)["entries"]
    assert entry["resource"]["labels"]["instance_id"] == number
