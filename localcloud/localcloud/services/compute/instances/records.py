"""Instance records: where they lie, and how a method changes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud, Hook
from localcloud.core.errors import ApiError
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.fingerprints import stamp
from localcloud.services.compute.instances import machine
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.resources import Edit, begin, load

KIND = Kind(
    collection="instances",
    parameter="instance",
    scope="zones",
)
started: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was created or started."""
ended: Hook[[Cloud, str], None] = Hook()
"""Runs when the instance at a path was stopped or deleted, or went off by itself."""


def policies(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the resources whose policies may grant a permission on the instance."""
    return (KIND.path(call), f"projects/{call.project}")


INSTANCES = Collection(API, "instances", "compute.instances", policies)


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


def changes(name: str) -> Callable[[Edit], Edit]:
    """Register `edit(cloud, call, record)` for a method that changes an instance's settings.

    `edit` changes the record in place or refuses, under the store's lock. Afterwards the machine
    is told, and the operation is answered.

    Args:
        name: of the method and of its operation, such as `setMetadata`.
    """

    def register(edit: Edit) -> Edit:
        @INSTANCES.method(name)
        def handle(cloud: Cloud, call: Call) -> Json:
            path = KIND.path(call)
            with cloud.store.locked():
                record = load(cloud, path)
                edit(cloud, call, record)
                save(cloud, path, record)
            # Not under the store's lock: a machine that is halting may still call APIs.
            cloud.machines.update(machine.spec(cloud, record))
            return begin(cloud, call, KIND, name, path)

        return edit

    return register


def require_stopped(record: Record, what: str) -> None:
    """Refuse a change that needs the instance to be TERMINATED."""
    if record["status"] != "TERMINATED":
        raise ApiError(
            400,
            f"Invalid resource usage: '{what} can only be changed when the instance is stopped; "
            f"its status is {record['status']}.'.",
            reason="invalidUsage",
        )
