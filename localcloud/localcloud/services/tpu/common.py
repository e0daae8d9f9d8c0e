"""Nodes as every version of the API shows them."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.paging import page
from localcloud.services.tpu import hosts
from localcloud.services.tpu.api import NODE, NODES, load, node_name, place
from localcloud.services.tpu.views import node_view


def _view(cloud: Cloud, call: Call, record: Record) -> Json:
    if record["state"] == "READY":
        record["networkEndpoints"] = hosts.endpoints(cloud, record)
    return node_view(record, call.method.version)


@NODES.method("get")
def get_node(cloud: Cloud, call: Call) -> Json:
    """Describe a node."""
    return _view(cloud, call, load(cloud, NODE, node_name(call)))


@NODES.method("list")
def list_nodes(cloud: Cloud, call: Call) -> Json:
    """List the nodes of a zone, or of all zones for the location `-`."""
    everywhere = call.params["locationsId"] == "-"
    prefix = f"projects/{call.project}/locations/" if everywhere else f"{place(call)}/nodes/"
    records = [record for _, record in cloud.store.items(NODE, prefix)]
    return page(call, "nodes", [_view(cloud, call, record) for record in records])
