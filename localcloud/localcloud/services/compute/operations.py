"""Compute operations: zonal, regional and global."""

from __future__ import annotations

import re
from http import HTTPStatus

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import not_found
from localcloud.core.store import Record, Work
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.links import last, shown, url_of
from localcloud.services.compute.paging import page

_PREFIX = "compute/"
# Google's names for the reasons of a failed operation, where they differ from the calls' own, which
# are the same words: resourceInUseByAnotherResource is RESOURCE_IN_USE_BY_ANOTHER_RESOURCE.
_CODES = {"invalid": "INVALID_USAGE", "notFound": "RESOURCE_NOT_FOUND", "backendError": "INTERNAL"}
_WAIT = 120.0
_STEP = 0.2


def start(cloud: Cloud, call: Call, work: Work, *, scope: str, kind: str, target: str) -> Json:
    """Begin an operation and answer it.

    Args:
        cloud: the cloud.
        call: the call that asks for it.
        work: what it does. An error with an upper-case `reason` has that as its code, such as
            ZONE_RESOURCE_POOL_EXHAUSTED.
        scope: `zones/z`, `regions/r` or `global`: where the operation is polled.
        kind: the operation's type, such as `insert`.
        target: path of the resource from `projects/` on.
    """
    place, user = f"projects/{call.project}/{scope}", call.principal.email
    return _show(call, *start_in(cloud, place, work, kind=kind, target=target, user=user))


def start_in(
    cloud: Cloud, place: str, work: Work, *, kind: str, target: str, user: str
) -> tuple[str, Record]:
    """Begin an operation in a place (`projects/p/zones/z`), also one that no call asked for.

    `user` is on whose behalf it is done.

    Returns:
        The operation's key and record.
    """
    number = str(cloud.operations.number())
    resource = cloud.store.get(STORE, target) or {}
    about = {
        "id": number,
        "operationType": kind,
        "target": target,
        "targetId": resource.get("id", number),
        "user": user,
    }
    key = f"{_PREFIX}{place}/operations/operation-{number}"
    return key, cloud.operations.start(key, work, about)


def _show(call: Call, key: str, record: Record) -> Json:
    path = key.removeprefix(_PREFIX)
    about = record["about"]
    done = record["done"]
    begun = rfc3339(record["started"])
    operation: Json = {
        "kind": "compute#operation",
        "id": about["id"],
        "name": last(path),
        "operationType": about["operationType"],
        "targetLink": url_of(about["target"]),
        "targetId": about["targetId"],
        "status": "DONE" if done else "RUNNING",
        "user": about["user"],
        "progress": 100 if done else 0,
        "insertTime": begun,
        "startTime": begun,
        "selfLink": url_of(path),
    }
    scope = path.split("/")[2:4]
    if scope[0] in ("zones", "regions"):
        operation[scope[0].removesuffix("s")] = url_of("/".join(path.split("/")[:4]))
    if done:
        operation["endTime"] = rfc3339(record["finished"])
    if "error" in record:
        operation |= _error(record["error"])
    return shown(call, operation)


def _error(error: Record) -> Json:
    reason, status = error.get("reason", "backendError"), error.get("http", 500)
    code = _CODES.get(reason) or re.sub("(?<=[a-z])(?=[A-Z])", "_", reason).upper()
    return {
        "error": {"errors": [{"code": code, "message": error["message"]}]},
        "httpErrorStatusCode": status,
        "httpErrorMessage": HTTPStatus(status).phrase.upper(),
    }


def _scope(call: Call) -> str:
    for collection in ("zone", "region"):
        if collection in call.params:
            return f"{collection}s/{call.params[collection]}"
    return "global"


def _key(call: Call) -> str:
    scope, name = _scope(call), call.params["operation"]
    return f"{_PREFIX}projects/{call.project}/{scope}/operations/{name}"


def _read(cloud: Cloud, call: Call) -> Json:
    key = _key(call)
    missing = not_found(key.removeprefix(_PREFIX))
    return _show(call, key, cloud.operations.load(key, missing))


@API.method("zoneOperations.get", permission="compute.zoneOperations.get")
@API.method("regionOperations.get", permission="compute.regionOperations.get")
@API.method("globalOperations.get", permission="compute.globalOperations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Answer where an operation stands."""
    return _read(cloud, call)


@API.method("zoneOperations.wait", permission="compute.zoneOperations.get")
@API.method("regionOperations.wait", permission="compute.regionOperations.get")
@API.method("globalOperations.wait", permission="compute.globalOperations.get")
def wait_operation(cloud: Cloud, call: Call) -> Json:
    """Answer when the operation is done, after two minutes at the latest."""
    deadline = cloud.clock.now() + _WAIT
    operation = _read(cloud, call)
    while operation["status"] != "DONE" and cloud.clock.now() < deadline:
        cloud.clock.sleep(_STEP)
        operation = _read(cloud, call)
    return operation


@API.method("zoneOperations.list", permission="compute.zoneOperations.list")
@API.method("regionOperations.list", permission="compute.regionOperations.list")
@API.method("globalOperations.list", permission="compute.globalOperations.list")
def list_operations(cloud: Cloud, call: Call) -> Json:
    """List the operations of a scope."""
    path = f"projects/{call.project}/{_scope(call)}/operations"
    records = cloud.operations.items(f"{_PREFIX}{path}/")
    items = [_show(call, key, record) for key, record in records]
    return page(call, "compute#operationList", path, items)


@API.method("zoneOperations.delete", permission="compute.zoneOperations.delete")
@API.method("regionOperations.delete", permission="compute.regionOperations.delete")
@API.method("globalOperations.delete", permission="compute.globalOperations.delete")
def delete_operation(cloud: Cloud, call: Call) -> None:
    """Forget an operation."""
    if not cloud.operations.delete(_key(call)):
        raise not_found(_key(call).removeprefix(_PREFIX))
