"""Version 1: classic TPU nodes; TPU VMs are seen, stopped and deleted here too."""

from __future__ import annotations

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.compute.api import url_of
from localcloud.services.compute.networks import require_network
from localcloud.services.tpu import capacity, catalog, checks, cidr, nodes
from localcloud.services.tpu.api import NODE, NODES, load, node_name, zone_of
from localcloud.services.tpu.locations import service_identity

_V1 = ("v1",)


@NODES.method("create", versions=_V1)
def create_node(cloud: Cloud, call: Call) -> Json:
    """Create a classic node."""
    name = nodes.new_name(cloud, call)
    capacity.require_nodes_allowed(cloud)
    accelerator = checks.accelerator(zone_of(name), call.body)
    checks.require_common(call.body)
    _require_version(call.body.get("tensorflowVersion", ""))
    with cloud.store.locked():
        return nodes.begin_create(cloud, call, name, _record(cloud, call, accelerator))


@NODES.method("reimage", versions=_V1)
def reimage_node(cloud: Cloud, call: Call) -> Json:
    """Install another TensorFlow version on a classic node."""
    name = node_name(call, cloud)
    version = call.body.get("tensorflowVersion", "")
    if "tensorflowVersion" not in load(cloud, NODE, name):
        raise invalid(f"'{name}' is a TPU VM; only TPU nodes can be reimaged.")
    _require_version(version)
    states = ("READY", "STOPPED")
    return nodes.begin(cloud, call, "reimage", states, "REIMAGING", tensorflowVersion=version)


def _record(cloud: Cloud, call: Call, accelerator: catalog.Accelerator) -> Record:
    body = call.body
    project = call.project
    network = require_network(cloud, project, checks.by_id(cloud, body.get("network", "")))
    if not body.get("useServiceNetworking") and network.split("/")[1] != project:
        raise invalid("A Shared VPC's network needs use_service_networking.")
    record: Record = {
        "description": body.get("description"),
        "labels": body.get("labels"),
        "acceleratorType": accelerator.name,
        "acceleratorConfig": {"type": accelerator.type, "topology": accelerator.topology},
        "tensorflowVersion": body["tensorflowVersion"],
        "network": network.replace(f"projects/{project}/", f"projects/{projects.number(project)}/"),
        "serviceAccount": service_identity(project),
        "schedulingConfig": checks.scheduling(body.get("schedulingConfig") or {}) or None,
        "useServiceNetworking": body.get("useServiceNetworking") or None,
        "apiVersion": "V1",
        "_network": network,
        "_uses": [url_of(network)],
    }
    if record["useServiceNetworking"]:
        if body.get("cidrBlock"):
            raise invalid("cidr_block and use_service_networking exclude each other.")
    else:
        wanted = body.get("cidrBlock", "")
        record["cidrBlock"] = cidr.accepted(cloud, accelerator, network, wanted)
    return {key: value for key, value in record.items() if value is not None}


def _require_version(version: str) -> None:
    if version not in catalog.tensorflow_versions():
        raise invalid(
            f'Cloud TPU received an invalid TensorFlowVersion, "{version}". Accepted values are '
            f"{', '.join(catalog.tensorflow_versions())}."
        )
