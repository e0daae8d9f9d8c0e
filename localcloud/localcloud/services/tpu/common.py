"""Calls on nodes that all versions of the API have."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.paging import page
from localcloud.services.tpu import hosts, nodes
from localcloud.services.tpu.api import API, NODE, load, place
from localcloud.services.tpu.views import node_view


def node_name(call: Call) -> str:
    """Return the full name of the node in the path."""
    return f"{place(call)}/nodes/{call.params['nodesId']}"


def _view(cloud: Cloud, call: Call, record: Record) -> Json:
    if record["state"] == "READY":
        record["networkEndpoints"] = hosts.endpoints(cloud, record)
    return node_view(record, call.method.version)


@API.method("projects.locations.nodes.get", permission="tpu.nodes.get")
def get_node(cloud: Cloud, call: Call) -> Json:
    """Describe a node."""
    return _view(cloud, call, load(cloud, NODE, node_name(call)))


@API.method("projects.locations.nodes.list", permission="tpu.nodes.list")
def list_nodes(cloud: Cloud, call: Call) -> Json:
    """List the nodes of a zone, or of all zones for the location `-`."""
    everywhere = call.params["locationsId"] == "-"
    prefix = f"projects/{call.project}/locations/" if everywhere else f"{place(call)}/nodes/"
    records = [record for _, record in cloud.store.items(NODE, prefix)]
    return page(call, "nodes", [_view(cloud, call, record) for record in records])


@API.method("projects.locations.nodes.delete", permission="tpu.nodes.delete")
def delete_node(cloud: Cloud, call: Call) -> Json:
    """Delete a node."""
    return nodes.begin_delete(cloud, call, node_name(call))


@API.method("projects.locations.nodes.start", permission="tpu.nodes.start")
def start_node(cloud: Cloud, call: Call) -> Json:
    """Start a stopped node."""
    return nodes.begin_start(cloud, call, node_name(call))


@API.method("projects.locations.nodes.stop", permission="tpu.nodes.stop")
def stop_node(cloud: Cloud, call: Call) -> Json:
    """Stop a node."""
    return nodes.begin_stop(cloud, call, node_name(call))
