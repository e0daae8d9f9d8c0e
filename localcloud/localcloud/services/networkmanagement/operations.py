"""Long-running operations of the Network Management API."""

from __future__ import annotations

from localcloud.core.call import Call, Json, page
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.store import Record, Work, show_operation
from localcloud.services.networkmanagement.api import API, place

_PREFIX = "networkmanagement/"
_TYPE = "type.googleapis.com/google.cloud.networkmanagement.v1"
_PATH = "projects.locations.global.operations"
_PERMISSION = "networkmanagement.operations"


def start(cloud: Cloud, call: Call, work: Work, *, verb: str, target: str) -> Json:
    """Begin an operation on the test called `target`, and answer it."""
    name = f"{place(call)}/operations/operation-{cloud.operations.number():x}"
    record = cloud.operations.start(_PREFIX + name, work, {"verb": verb, "target": target})
    return _show(name, record)


def _show(name: str, record: Record) -> Json:
    metadata: Json = {
        "@type": f"{_TYPE}.OperationMetadata",
        "createTime": rfc3339(record["started"]),
        **record["about"],
        "apiVersion": "v1",
        "cancelRequested": False,
    }
    return show_operation(
        name, metadata, record, lambda made: {"@type": f"{_TYPE}.ConnectivityTest", **made}
    )


def _load(cloud: Cloud, call: Call) -> tuple[str, Record]:
    name = f"{place(call)}/operations/{call.params['operationsId']}"
    missing = ApiError(404, f"Resource '{name}' was not found")
    return name, cloud.operations.load(_PREFIX + name, missing)


@API.method(f"{_PATH}.get", permission=f"{_PERMISSION}.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Answer where an operation stands."""
    return _show(*_load(cloud, call))


@API.method(f"{_PATH}.list", permission=f"{_PERMISSION}.list")
def list_operations(cloud: Cloud, call: Call) -> Json:
    """List the operations."""
    found = cloud.operations.items(f"{_PREFIX}{place(call)}/operations/")
    return page(call, "operations", [_show(k.removeprefix(_PREFIX), r) for k, r in found])


@API.method(f"{_PATH}.delete", permission=f"{_PERMISSION}.delete")
def delete_operation(cloud: Cloud, call: Call) -> Json:
    """Forget an operation."""
    cloud.operations.delete(_PREFIX + _load(cloud, call)[0])
    return {}
