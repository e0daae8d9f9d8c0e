"""Instance records: where they lie, and how a method changes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.hooks import Hook
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.fingerprints import stamp
from localcloud.services.compute.instances import machine
from localcloud.services.compute.resources import Kind, begin, load, place_of


def _unused(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    """Instances are prepared by their own insert."""


KIND = Kind(
    methods="instances",
    collection="instances",
    parameter="instance",
    kind="compute#instance",
    scope="zones",
    prepare=_unused,
)
Edit = Callable[[Record], None]
started: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was created or started."""
ended: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was stopped or deleted, or went off by itself."""


def path_of_call(call: Call) -> str:
    """The path of the instance that a call names."""
    name = call.params.get("instance") or call.params["resource"]
    return f"projects/{call.project}/{place_of(call)}/instances/{name}"


def policies(cloud: Cloud, call: Call) -> Sequence[str]:
    """Whose policies may grant a permission on the instance."""
    return (path_of_call(call), f"projects/{call.project}")


def save(cloud: Cloud, path: str, record: Record) -> None:
    """Store a changed instance."""
    stamp(record)
    cloud.store.put(STORE, path, record)


def set_status(cloud: Cloud, path: str, status: str, **fields: str) -> Record:
    """Change an instance's status and timestamps; the changed record."""
    with cloud.store.locked():
        record = load(cloud, path) | {"status": status} | fields
        save(cloud, path, record)
        return record


def change(cloud: Cloud, call: Call, type_: str, edit: Edit) -> Json:
    """Change an instance's settings, tell its machine, answer the operation.

    Args:
        cloud: the cloud.
        call: names the instance.
        type_: of the operation, such as `setMetadata`.
        edit: changes the record in place or refuses.
    """
    path = path_of_call(call)
    with cloud.store.locked():
        record = load(cloud, path)
        edit(record)
        save(cloud, path, record)
    # Not under the store's lock: a machine that is halting may still call APIs.
    cloud.machines.update(machine.spec(cloud, record))
    return begin(cloud, call, KIND, type_, path, "compute.settle", "update")


def require_stopped(record: Record, what: str) -> None:
    """Refuse a change that needs the instance to be TERMINATED."""
    if record["status"] != "TERMINATED":
        raise ApiError(
            400,
            f"Invalid resource usage: '{what} can only be changed when the instance is stopped; "
            f"its status is {record['status']}.'.",
            reason="invalidUsage",
        )
