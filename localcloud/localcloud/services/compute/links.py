"""URLs of compute resources: callers write them in many ways, the store in one.

Stored records hold full URLs of version v1, as Google's v1 shows them; `shown` turns them into
those of the version that is asked.
"""

from __future__ import annotations

import re
from typing import Any

from localcloud.core.call import Call, Json
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
    """Return a copy of a stored record with the URLs of the version that `call` uses.

    Names that begin with `_` are the emulator's own and stay hidden.
    """
    root = f"{_ROOT}{call.method.version}/"
    shown_record: Json = _replace(record, root)
    return shown_record


def _replace(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {k: _replace(child, root) for k, child in value.items() if not k.startswith("_")}
    if isinstance(value, list):
        return [_replace(child, root) for child in value]
    if isinstance(value, str) and value.startswith(_STORED):
        return root + value.removeprefix(_STORED)
    return value
