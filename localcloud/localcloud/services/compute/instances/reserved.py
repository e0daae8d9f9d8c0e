"""Reserved addresses that an instance uses: they say so, and cannot be released meanwhile."""

from __future__ import annotations

from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import url_of


def find(cloud: Cloud, prefix: str, address: str, **fields: str) -> str:
    """Return the path of the reserved address below `prefix` with these fields, or empty."""
    for path, record in cloud.store.items(STORE, prefix):
        fits = "/addresses/" in path and record.get("address") == address
        if fits and all(record.get(name) == value for name, value in fields.items()):
            return path
    return ""


def take(cloud: Cloud, path: str, instance: str) -> None:
    """Mark the address at `path` as used by an instance."""
    record = cloud.store.get(STORE, path) or {}
    used = {"status": "IN_USE", "users": [url_of(instance)]}
    cloud.store.put(STORE, path, record | used)


def give_back(cloud: Cloud, instance: str, address: str = "") -> None:
    """Mark the addresses that an instance used as free: all, or only `address`."""
    project = "/".join(instance.split("/")[:2])
    for path, record in cloud.store.items(STORE, f"{project}/regions/"):
        if "/addresses/" not in path or record.get("users") != [url_of(instance)]:
            continue
        if not address or record["address"] == address:
            free: Record = {key: value for key, value in record.items() if key != "users"}
            cloud.store.put(STORE, path, free | {"status": "RESERVED"})
