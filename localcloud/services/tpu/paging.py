"""Pages of lists."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.errors import invalid

_SIZE = 100
_MOST = 1000


def page(call: Call, field: str, items: list[Json]) -> Json:
    """One page of `items` under the name `field`, as `pageSize` and `pageToken` ask for it."""
    size = min(call.number("pageSize") or _SIZE, _MOST)
    token = call.arg("pageToken")
    if size < 0 or (token and not token.isdigit()):
        raise invalid("Request contains an invalid argument: pageSize or pageToken.")
    begin = int(token or 0)
    result: Json = {field: items[begin : begin + size]} if items[begin : begin + size] else {}
    if begin + size < len(items):
        result["nextPageToken"] = str(begin + size)
    return result
