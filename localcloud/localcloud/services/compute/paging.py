"""Lists: filters, pages and aggregation by scope."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json, cut
from localcloud.core.errors import invalid
from localcloud.services.compute.links import shown, url_of

_MOST = 500
_TERM = re.compile(r"""\(?\s*([\w.]+)\s*(!=|=|:|eq|ne)\s*("[^"]*"|'[^']*'|[^\s()]+)\s*\)?""")


def page(call: Call, kind: str, path: str, items: list[Json]) -> Json:
    """Return one page of `items` as a compute list.

    Args:
        call: carries `filter`, `maxResults` and `pageToken`.
        kind: such as `compute#networkList`.
        path: of the collection, from `projects/` on.
        items: stored records, in order.
    """
    chosen = [item for item in items if matches(call.arg("filter"), item)]
    size = min(call.number("maxResults") or _MOST, _MOST)
    token = call.arg("pageToken")
    if token and not token.isdigit():
        raise invalid(f"Invalid value for field 'pageToken': '{token}'.")
    result = {"kind": kind, "id": path, "selfLink": url_of(path)}
    return shown(call, result | cut("items", chosen, token, size))


def aggregate(
    call: Call, kind: str, path: str, collection: str, by_scope: dict[str, list[Json]]
) -> Json:
    """Return an aggregated list: items by `zones/z`, `regions/r` or `global`."""
    items: Json = {}
    for scope, records in by_scope.items():
        chosen = [record for record in records if matches(call.arg("filter"), record)]
        if chosen:
            items[scope] = {collection: chosen}
        else:
            warning = {
                "code": "NO_RESULTS_ON_PAGE",
                "message": f"No results for the scope '{scope}'.",
                "data": [{"key": "scope", "value": scope}],
            }
            items[scope] = {"warning": warning}
    return shown(call, {"kind": kind, "id": path, "selfLink": url_of(path), "items": items})


def matches(expression: str, record: Json) -> bool:
    """Return whether a list filter chooses `record`.

    Comparisons `field = value`, `!=`, `eq`, `ne` (a whole-string regular expression) and `:`
    (contains; `*` for present), joined by AND or side by side.

    Raises:
        ApiError: 400 for a filter that is none of these.
    """
    rest = expression.strip()
    while rest:
        term = _TERM.match(rest)
        if term is None:
            raise invalid(f"Invalid value for field 'filter': '{expression}'. Invalid list filter.")
        field, operator, value = term.groups()
        if not _holds(_find(record, field), operator, value.strip("\"'")):
            return False
        rest = re.sub(r"^(AND\b\s*)?", "", rest[term.end() :].strip())
    return True


def _find(record: Json, field: str) -> str:
    value: object = record
    for part in field.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _holds(actual: str, operator: str, wanted: str) -> bool:
    if operator == ":":
        return bool(actual) if wanted == "*" else wanted in actual
    if operator in ("eq", "ne"):
        return (re.fullmatch(wanted, actual) is not None) == (operator == "eq")
    if operator == "=" and "*" in wanted:
        return re.fullmatch(re.escape(wanted).replace(r"\*", ".*"), actual) is not None
    return (actual == wanted) == (operator == "=")
