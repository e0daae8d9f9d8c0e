"""Reserved addresses, regional and global."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.compute import ipam
from localcloud.services.compute.kinds import Kind, Scope
from localcloud.services.compute.links import url_of
from localcloud.services.compute.networks import require_network
from localcloud.services.compute.resources import require_permission, serve
from localcloud.services.compute.subnetworks import require_subnetwork
from localcloud.services.compute.usage import in_use


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    record["status"] = "RESERVED"
    if record["addressType"] == "EXTERNAL":
        _prepare_external(cloud, path, record)
    elif "region" in call.params:
        _prepare_internal(cloud, call, path, record)
    else:
        # A range for private services access, which the caller chooses.
        record["network"] = url_of(require_network(cloud, call.project, record.get("network", "")))
        if not record.get("address"):
            raise invalid("Invalid value for field 'resource.address': ''. Give the range's start.")


def _prepare_external(cloud: Cloud, path: str, record: Json) -> None:
    record.setdefault("networkTier", "PREMIUM")
    record.setdefault("ipVersion", "IPV4")
    if record.get("address"):
        raise invalid("An external address cannot be chosen; leave 'address' out.")
    record["address"] = ipam.reserve_external(cloud, path)


def _prepare_internal(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    zone = f"{call.params['region']}-a"
    network = require_network(cloud, call.project, record.pop("network", ""))
    reference = record.get("subnetwork", "")
    subnet = require_subnetwork(cloud, call.project, zone, reference, "" if reference else network)
    require_permission(cloud, call, "compute.subnetworks.use")
    record["subnetwork"] = subnet["selfLink"]
    record.setdefault("purpose", "GCE_ENDPOINT")
    record.setdefault("networkTier", "PREMIUM")
    record["address"] = ipam.reserve(cloud, subnet, path, record.get("address", ""))


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise in_use(path, record["users"][0])
    ipam.release(cloud, path)


def _serve(methods: str, scope: Scope) -> None:
    serve(
        Kind(
            methods=methods,
            collection="addresses",
            parameter="address",
            scope=scope,
            defaults={"addressType": "EXTERNAL"},
            prepare=_prepare,
            remove=_remove,
            labelled=True,
        )
    )


_serve("addresses", "regions")
_serve("globalAddresses", "global")
