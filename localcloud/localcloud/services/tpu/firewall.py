"""On request (setting `tpu-firewall`) Cloud TPU makes a rule in a TPU VM's network, and leaves it.

Google's service agents for TPUs may change firewall rules (roles/cloudtpu.serviceAgent and
roles/tpu.xpnAgent); whether they do in a network of the project, nobody here has seen.
"""

from __future__ import annotations

from localcloud.core.cloud import Cloud
from localcloud.services.compute.api import STORE, url_of
from localcloud.services.compute.resources import identity
from localcloud.services.tpu import nodes
from localcloud.services.tpu.api import NODE

_RULE = {"priority": 1000, "direction": "INGRESS", "disabled": False}
_RULE |= {"sourceRanges": ["10.0.0.0/8"], "allowed": [{"IPProtocol": "tcp", "ports": ["8470"]}]}


@nodes.served
def _add_rule(cloud: Cloud) -> None:
    if not cloud.setting("tpu-firewall").get("on"):
        return
    for _, node in cloud.store.items(NODE):
        project, _, network = node["_network"].partition("/global/networks/")
        name = f"tpu-{network}"[:63].rstrip("-")
        path = f"{project}/global/firewalls/{name}"
        rule = identity(cloud, "compute#firewall", path, name) | _RULE
        cloud.store.put(STORE, path, rule | {"network": url_of(node["_network"])})
