"""Nodes and queued resources as each version of the API shows them.

A stored node has the fields of v2alpha1 and, for a classic one, those that only v1 has. Names that
begin with `_` are the emulator's own.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from localcloud.core.call import Json
from localcloud.core.discovery import document
from localcloud.core.store import Record
from localcloud.services.tpu import catalog

_NEWER_THAN_V1 = {"V2": "V2_ALPHA1"}


def node_view(record: Record, version: str) -> Json:
    """Return a node in `version`: v1 shows TPU VMs too, v2 shows classic nodes too."""
    view = _with_block(record)
    if version == "v1":
        _as_v1(view)
    else:
        _as_v2(view)
    if version != "v2":
        view["apiVersion"] = _NEWER_THAN_V1.get(view["apiVersion"], view["apiVersion"])
    return _known(view, version, "Node")


def queued_view(record: Record, version: str) -> Json:
    """Return a queued resource in `version`."""
    return _known(record, version, "QueuedResource")


def _with_block(record: Record) -> Json:
    """Return a node with the block that its hosts' addresses lie in, if it has no other."""
    taken = record.get("_addresses")
    if not taken or "cidrBlock" in record:
        return dict(record)
    prefix = catalog.accelerators()[record["acceleratorType"]].prefix
    return record | {"cidrBlock": str(IPv4Network((taken[0], prefix), strict=False))}


def _as_v1(view: Json) -> None:
    account = view.get("serviceAccount")
    if isinstance(account, dict):
        view["serviceAccount"] = account["email"]
    view.setdefault("tensorflowVersion", view.get("runtimeVersion"))
    endpoints = view.get("networkEndpoints", [])
    if endpoints:
        view["ipAddress"] = endpoints[0]["ipAddress"]
        view["port"] = str(endpoints[0]["port"])
    if "networkConfig" in view:
        view["network"] = view["networkConfig"]["network"]


def _as_v2(view: Json) -> None:
    if isinstance(view.get("serviceAccount"), str):
        view["serviceAccount"] = {"email": view["serviceAccount"]}
    view.setdefault("runtimeVersion", view.get("tensorflowVersion"))
    if "network" in view:
        view["networkConfig"] = {"network": view["network"]}


def _known(record: Json, version: str, schema: str) -> Json:
    """Return the fields of `record`, at every depth, that the schema of this version has.

    The API leaves out what is false.
    """
    schemas = document("tpu", version).schemas
    known = schemas[schema].get("properties", {})
    return {
        key: _fitted(value, version, known[key])
        for key, value in record.items()
        if key in known and value is not None and value is not False
    }


def _fitted(value: Any, version: str, spec: Json) -> Any:
    if "$ref" in spec:
        return _known(value, version, spec["$ref"])
    if spec.get("type") == "array":
        return [_fitted(item, version, spec["items"]) for item in value]
    return value
