"""URLs of compute resources: callers write them in many ways, the store in one.

Stored records hold full URLs of version v1, as Google's v1 shows them; `shown` turns them into
those of the version that is asked.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from localcloud.core.call import Call, Json
from localcloud.core.discovery import document
from localcloud.core.errors import invalid

_ROOT = "https://www.googleapis.com/compute/"
_STORED = f"{_ROOT}v1/"
_ABSOLUTE = re.compile(r"https://[^/]+/compute/[^/]+/(projects/.+)")


def path_of(reference: str, project: str) -> str:
    """Return the path from `projects/` on that `reference` means to a caller in `project`.

    Args:
        reference: a full URL, `projects/…`, or a partial path such as `global/networks/n`.
        project: the project of references that name none.
    """
    absolute = _ABSOLUTE.fullmatch(reference)
    if absolute:
        return absolute.group(1)
    if reference.startswith("projects/"):
        return reference
    if re.match(r"(global|zones|regions)/", reference):
        return f"projects/{project}/{reference}"
    raise invalid(f"Invalid resource reference: '{reference}'. The URL is malformed.")


def url_of(path: str) -> str:
    """Return the URL under which a resource's path is stored."""
    return _STORED + path


def path_from(url: str) -> str:
    """Return the path from `projects/` on of a stored URL."""
    return url.removeprefix(_STORED)


def last(reference: str) -> str:
    """Return the last part of a URL or path: the resource's name."""
    return reference.rpartition("/")[2]


def shown(call: Call, record: Json) -> Json:
    """Return a copy of a stored record as the version that `call` uses shows it.

    The URLs are the version's, and fields of resources that only another version has are left out,
    as are names that begin with `_`, which are the emulator's own.
    """
    shown_record: Json = _replace(record, call.method.version)
    return shown_record


def _replace(value: Any, version: str) -> Any:
    if isinstance(value, dict):
        known = _fields(version, str(value.get("kind", "")))
        return {
            name: _replace(child, version)
            for name, child in value.items()
            if not name.startswith("_") and (not known or name in known)
        }
    if isinstance(value, list):
        return [_replace(child, version) for child in value]
    if isinstance(value, str) and value.startswith(_STORED):
        return f"{_ROOT}{version}/{value.removeprefix(_STORED)}"
    return value


@cache
def _fields(version: str, kind: str) -> frozenset[str]:
    """Return the fields of resources of a kind, such as `compute#disk`; none for other values."""
    name = kind.partition("compute#")[2]
    schema = document("compute", version).schemas.get(name[:1].upper() + name[1:], {})
    return frozenset(schema.get("properties", ()))
