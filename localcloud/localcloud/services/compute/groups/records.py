"""Records of managed instance groups: where they lie, and what they know of their instances.

The emulator's own part of a record: `_members` (by name, see `member`), `_configs` (per-instance
configs by name), `_creator` (as whom the group acts; on Google it is a service agent that may do
the same), `_watch` (the number of the chain of health checks that counts) and `_deleting`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator

from localcloud.core.cloud import Cloud
from localcloud.core.errors import not_found
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.fingerprints import fingerprint
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.resources import load

COLLECTION = "instanceGroupManagers"
_SETTINGS = (
    "autoHealingPolicies",
    "baseInstanceName",
    "description",
    "instanceLifecyclePolicy",
    "targetSize",
    "updatePolicy",
    "versions",
)
# A group acts once at a time: its deletion waits for an instance that is being made.
_locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)


KIND = Kind(
    collection=COLLECTION,
    parameter="instanceGroupManager",
    scope="zones",
)


def load_group(cloud: Cloud, path: str) -> Record:
    """Return the group at `path`; 404 when there is none, or none any more."""
    record = load(cloud, path)
    if record.get("_deleting"):
        raise not_found(path)
    return record


def instance_path(group: str, name: str) -> str:
    """Return the path of an instance of a group."""
    return f"{group.partition(f'/{COLLECTION}/')[0]}/instances/{name}"


def lock(group: str) -> threading.RLock:
    """Return the lock to hold while instances of a group are made or deleted."""
    return _locks[group]


def save(cloud: Cloud, path: str, record: Record) -> None:
    """Store a group; its fingerprint covers the settings that a user makes."""
    record["targetSize"] = sum(
        member["action"] != "DELETING" for member in record["_members"].values()
    )
    record["fingerprint"] = fingerprint({name: record.get(name) for name in _SETTINGS})
    cloud.store.put(STORE, path, record)


def member(template: str, action: str) -> Record:
    """Return what a group knows of one of its instances at first.

    `template` is the URL of the one it is made from, `since` when it was made, `streak` how many
    checks in a row said the opposite of `health`.
    """
    return {
        "template": template,
        "action": action,
        "errors": [],
        "since": 0.0,
        "health": "UNKNOWN",
        "streak": 0,
    }


def note(cloud: Cloud, group: str, name: str, **fields: object) -> None:
    """Change what a group knows of an instance, if both are still there."""
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is not None and name in record["_members"]:
            record["_members"][name] |= fields
            save(cloud, group, record)


def groups_of(cloud: Cloud, instance: str) -> Iterator[tuple[str, Record]]:
    """Return the group that an instance belongs to, if any."""
    zone, _, name = instance.partition("/instances/")
    for path, record in cloud.store.items(STORE, f"{zone}/{COLLECTION}/"):
        if name in record["_members"]:
            yield path, record


def template_of(record: Record) -> str:
    """Return the URL of the template that new instances of the group are made from."""
    template: str = record["versions"][0]["instanceTemplate"]
    return template
