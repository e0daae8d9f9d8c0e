"""Guest attributes: what a machine writes down for those who watch it from outside."""

from __future__ import annotations

import re

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError

_KIND = "guest-attributes"
# Limits: cloud.google.com/compute/docs/metadata/manage-guest-attributes.
_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")
_LONGEST = 256 * 1024


def all_of(cloud: Cloud, key: str) -> dict[str, str]:
    """Return all guest attributes of the machine `key`, by `namespace/key`."""
    return dict(sorted((cloud.store.get(_KIND, key) or {}).items()))


def put(cloud: Cloud, key: str, name: str, value: bytes) -> None:
    """Write the attribute `namespace/key`.

    Raises:
        ApiError: 400 for a name or a value that Google refuses.
    """
    parts = name.split("/")
    if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
        raise ApiError(400, f"guest attribute '{name}' is not of the form namespace/key")
    if len(value) > _LONGEST:
        raise ApiError(400, f"guest attribute '{name}' is longer than {_LONGEST} bytes")
    with cloud.store.locked():
        record = cloud.store.get(_KIND, key) or {}
        cloud.store.put(_KIND, key, record | {name: value.decode("utf-8", "replace")})


def delete(cloud: Cloud, key: str, name: str) -> None:
    """Delete the attribute `namespace/key`.

    Raises:
        ApiError: 404 when there is none.
    """
    with cloud.store.locked():
        record = cloud.store.get(_KIND, key) or {}
        if record.pop(name, None) is None:
            raise ApiError(404, f"guest attribute '{name}' was not found")
        cloud.store.put(_KIND, key, record)


def forget(cloud: Cloud, key: str) -> None:
    """Delete all guest attributes of the machine."""
    cloud.store.delete(_KIND, key)
