"""Long-running operations of the TPU API."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.operations import Work
from localcloud.core.store import Record
from localcloud.services.long_running import EMPTY, shown
from localcloud.services.paging import page
from localcloud.services.tpu.api import API, missing, place
from localcloud.services.tpu.views import node_view, queued_view

_PREFIX = "tpu/"
_TYPE = "type.googleapis.com/google.cloud.tpu"


def start(cloud: Cloud, call: Call, work: Work, *, verb: str, target: str) -> Json:
    """Begin an operation and answer it.

    Args:
        cloud: the cloud.
        call: the call that asks for it.
        work: what it does; the effect returns the resource's record, or None.
        verb: such as `create`.
        target: full name of the resource.
    """
    now = int(cloud.clock.now() * 1000)
    name = f"{place(call)}/operations/operation-{now}-{cloud.operations.number():x}"
    about = {"verb": verb, "target": target, "version": call.method.version}
    return _show(name, cloud.operations.start(_PREFIX + name, work, about))


def _show(name: str, record: Record) -> Json:
    """Return an operation as the version that began it shows it: gRPC asks with none."""
    version = record["about"]["version"]
    metadata: Json = {
        "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
        "createTime": rfc3339(record["started"]),
        "target": record["about"]["target"],
        "verb": record["about"]["verb"],
        "cancelRequested": False,
        "apiVersion": version,
    }

    def response(made: Json) -> Json:
        # v2alpha1 answers what was deleted of the queue (`operation_info` in both cloud_tpu.proto).
        if (metadata["verb"], version) == ("delete", "v2"):
            return EMPTY
        if "/nodes/" in record["about"]["target"]:
            # A node's health is not known yet when its creation is done.
            told = made | ({"health": None} if metadata["verb"] == "create" else {})
            return {"@type": f"{_TYPE}.{version}.Node", **node_view(told, version)}
        return {"@type": f"{_TYPE}.{version}.QueuedResource", **queued_view(made, version)}

    return shown(name, metadata, record, response)


def _name(call: Call) -> str:
    return f"{place(call)}/operations/{call.params['operationsId']}"


def _load(cloud: Cloud, call: Call) -> Record:
    return cloud.operations.load(_PREFIX + _name(call), missing(_name(call)))


@API.method("projects.locations.operations.get", permission="tpu.operations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Answer where an operation stands."""
    return _show(_name(call), _load(cloud, call))


@API.method("projects.locations.operations.list", permission="tpu.operations.list")
def list_operations(cloud: Cloud, call: Call) -> Json:
    """List a location's operations."""
    prefix = f"{_PREFIX}{place(call)}/operations/"
    shown = [
        _show(key.removeprefix(_PREFIX), record) for key, record in cloud.operations.items(prefix)
    ]
    return page(call, "operations", shown)


@API.method("projects.locations.operations.cancel", permission="tpu.operations.get")
def cancel_operation(cloud: Cloud, call: Call) -> Json:
    """Refuse: operations on TPUs cannot be called off, and Google says so in their metadata."""
    if not _load(cloud, call)["done"]:
        raise ApiError(501, "Cancellation of this operation is not supported.")
    return {}


# Google names no permission for it, and has those to get and to list only: our own word.
@API.method("projects.locations.operations.delete", permission="tpu.operations.get")
def delete_operation(cloud: Cloud, call: Call) -> Json:
    """Forget a finished operation."""
    record = cloud.operations.get(_PREFIX + _name(call))
    if record is None or not record["done"]:
        raise ApiError(404 if record is None else 400, f"'{_name(call)}' is not a done operation")
    cloud.operations.delete(_PREFIX + _name(call))
    return {}
