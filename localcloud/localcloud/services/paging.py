"""Pages of lists."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.errors import invalid

_MOST = 1000


def page(call: Call, field: str, items: list[Json], *, size: int = 100) -> Json:
    """Return one page of `items` under the name `field`, as `pageSize` and `pageToken` ask for it.

    Args:
        call: the list call.
        field: of the response, such as `nodes`; left out when the page is empty.
        items: all of them, in the order in which they are shown.
        size: how many a page has when the caller doesn't say.
    """
    size = min(call.number("pageSize") or size, _MOST)
    token = call.arg("pageToken")
    if size < 0 or (token and not token.isdigit()):
        raise invalid("Request contains an invalid argument: pageSize or pageToken.")
    return cut(field, items, token, size)


def cut(field: str, items: list[Json], token: str, size: int) -> Json:
    """Return `size` items from the one on that `token` names, and the token of the next page."""
    begin = int(token or 0)
    result: Json = {field: items[begin : begin + size]} if items[begin : begin + size] else {}
    if begin + size < len(items):
        result["nextPageToken"] = str(begin + size)
    return result
