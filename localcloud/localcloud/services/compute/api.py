"""The Compute Engine API: its registration, the URLs of resources, lists and operations."""

import re
from functools import cache
from http import HTTPStatus
from typing import Any

from localcloud.core import Api, ApiError, Cloud, document, invalid, not_found, rfc3339
from localcloud.core.call import Call, Json, cut
from localcloud.core.store import Record, Work

API = Api("compute", ("beta", "v1"), hosts=("www.googleapis.com",))
STORE = "compute"
"""The store's kind of every compute resource; the key is its path from `projects/` on."""


def wrong_value(field: str, value: object, why: str = "") -> ApiError:
    """Return the 400 for a field of a request, in the words that all of Compute Engine uses."""
    return invalid(f"Invalid value for field '{field}': '{value}'.{f' {why}' if why else ''}")


# URLs: callers write them in many ways, the store in one. Stored records hold full URLs of version
# v1; `shown` turns them into those of the version that the call uses.

_ROOT = "https://www.googleapis.com/compute/"
_STORED = f"{_ROOT}v1/"
_ABSOLUTE = re.compile(r"https://[^/]+/compute/[^/]+/(projects/.+)")


def path_of(reference: str, project: str) -> str:
    """Return the path from `projects/` on of a URL, a path or a partial path.

    `project` is that of references that name none, such as `global/networks/n`.
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
    """Return the path from `projects/` on of a stored URL.

    Stored URLs are always those of v1, so this undoes `url_of`.
    """
    return url.removeprefix(_STORED)


def place_link(path: str) -> Json:
    """Return the field `zone` or `region` of what is at a path; none for what is global."""
    parts = path.split("/")
    if parts[2] not in ("zones", "regions"):
        return {}
    return {parts[2].removesuffix("s"): url_of("/".join(parts[:4]))}


def last(reference: str) -> str:
    """Return the last part of a URL or path: the resource's name."""
    return reference.rpartition("/")[2]


def shown(call: Call, record: Json) -> Json:
    """Return a copy of a stored record as the version that `call` uses shows it.

    The URLs are the version's. Fields that only other versions have, and the emulator's own (their
    names begin with `_`), are left out.
    """
    shown_record: Json = _replace(record, call.method.version)
    return shown_record


# A record inside a record has a kind of its own, such as `compute#attachedDisk`, and its own set of
# fields.
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


# Lists: filters, pages and aggregation by scope.

# "Acceptable values are 0 to 500, inclusive. (Default: 500)" (the discovery document).
_MOST = 500
# Quotes are optional around a value, brackets around a term, as clients write them in all ways.
_TERM = re.compile(r"""\(?\s*([\w.]+)\s*(!=|=|:|eq|ne)\s*("[^"]*"|'[^']*'|[^\s()]+)\s*\)?""")


def page(call: Call, kind: str, path: str, items: list[Json]) -> Json:
    """Return one page of stored records as a compute list of a `kind` (`compute#networkList`)."""
    chosen = [item for item in items if matches(call.arg("filter"), item)]
    size = min(call.number("maxResults") or _MOST, _MOST)
    token = call.arg("pageToken")
    if token and not token.isdigit():
        raise wrong_value("pageToken", token)
    result = {"kind": kind, "id": path, "selfLink": url_of(path)}
    return shown(call, result | cut("items", chosen, token, size))


def aggregate(
    call: Call, kind: str, path: str, collection: str, by_scope: dict[str, list[Json]]
) -> Json:
    """Return an aggregated list: items by `zones/z`, `regions/r` or `global`.

    A scope without any has a warning in their place: clients loop over all scopes and expect one.
    """
    items: Json = {}
    for scope, records in by_scope.items():
        if chosen := [record for record in records if matches(call.arg("filter"), record)]:
            items[scope] = {collection: chosen}
            continue
        message = f"No results for the scope '{scope}'."
        data = [{"key": "scope", "value": scope}]
        warning = {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": data}
        items[scope] = {"warning": warning}
    return shown(call, {"kind": kind, "id": path, "selfLink": url_of(path), "items": items})


def matches(expression: str, record: Json) -> bool:
    """Return whether a list filter chooses `record`.

    Comparisons `field = value`, `!=`, `eq`, `ne` (a whole-string regular expression) and `:`
    (contains; `*` for present), joined by AND or a space.
    """
    rest = expression.strip()
    while rest:
        term = _TERM.match(rest)
        if term is None:
            raise wrong_value("filter", expression, "Invalid list filter.")
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


# Operations: zonal, regional and global.

_PREFIX = "compute/"
# Google's names for the reasons of a failed operation, where they differ from the calls' own, which
# are the same words: resourceInUseByAnotherResource is RESOURCE_IN_USE_BY_ANOTHER_RESOURCE.
_CODES = {"invalid": "INVALID_USAGE", "notFound": "RESOURCE_NOT_FOUND", "backendError": "INTERNAL"}
# Seconds: "or for the request to approach the 2 minute deadline".
_WAIT = 120.0
_STEP = 0.2


def start(cloud: Cloud, call: Call, work: Work, *, scope: str, kind: str, target: str) -> Json:
    """Begin an operation of a type (`insert`) on the resource at path `target`, and answer it.

    It is polled in `scope`: `zones/z`, `regions/r` or `global`. An error with an upper-case
    `reason` has that as its code, such as ZONE_RESOURCE_POOL_EXHAUSTED.
    """
    place, user = f"projects/{call.project}/{scope}", call.principal.email
    return _show(call, *start_in(cloud, place, work, kind=kind, target=target, user=user))


def start_in(
    cloud: Cloud, place: str, work: Work, *, kind: str, target: str, user: str
) -> tuple[str, Record]:
    """Begin an operation in `projects/p/zones/z` on behalf of `user`; its key and record."""
    number = str(cloud.operations.number())
    resource = cloud.store.get(STORE, target) or {}
    about = {
        "id": number,
        "operationType": kind,
        "target": target,
        "targetId": resource.get("id", number),
        "user": user,
    }
    key = f"{_PREFIX}{place}/operations/operation-{number}"
    return key, cloud.operations.start(key, work, about)


# `targetId` is kept from the beginning: after a deletion there is no resource to ask.
def _show(call: Call, key: str, record: Record) -> Json:
    path = key.removeprefix(_PREFIX)
    about, done, begun = record["about"], record["done"], rfc3339(record["started"])
    operation: Json = {
        "kind": "compute#operation",
        "id": about["id"],
        "name": last(path),
        "operationType": about["operationType"],
        "targetLink": url_of(about["target"]),
        "targetId": about["targetId"],
        "status": "DONE" if done else "RUNNING",
        "user": about["user"],
        "progress": 100 if done else 0,
        # Nothing waits in a queue here, so that both times are the same.
        "insertTime": begun,
        "startTime": begun,
        "selfLink": url_of(path),
    }
    operation |= place_link(path)
    if done:
        operation["endTime"] = rfc3339(record["finished"])
    if "error" in record:
        operation |= _error(record["error"])
    return shown(call, operation)


def _error(error: Record) -> Json:
    reason, status = error.get("reason", "backendError"), error.get("http", 500)
    code = _CODES.get(reason) or re.sub("(?<=[a-z])(?=[A-Z])", "_", reason).upper()
    return {
        "error": {"errors": [{"code": code, "message": error["message"]}]},
        "httpErrorStatusCode": status,
        "httpErrorMessage": HTTPStatus(status).phrase.upper(),
    }


def _path(call: Call) -> str:
    """Return the path of the operations in the scope that a call names."""
    scope = next((c for c in ("zone", "region") if c in call.params), "")
    place = f"{scope}s/{call.params[scope]}" if scope else "global"
    return f"projects/{call.project}/{place}/operations"


def _read(cloud: Cloud, call: Call) -> Json:
    path = f"{_path(call)}/{call.params['operation']}"
    record = cloud.operations.load(_PREFIX + path, not_found(path))
    return _show(call, _PREFIX + path, record)


def wait_operation(cloud: Cloud, call: Call) -> Json:
    """Wait until the operation is done, for at most two minutes.

    A client asks again: "there is no guarantee that the operation is actually done when the method
    returns" (the discovery document).
    """
    deadline = cloud.clock.now() + _WAIT
    operation = _read(cloud, call)
    while operation["status"] != "DONE" and cloud.clock.now() < deadline:
        cloud.clock.sleep(_STEP)
        operation = _read(cloud, call)
    return operation


def _list_operations(cloud: Cloud, call: Call) -> Json:
    records = cloud.operations.items(f"{_PREFIX}{_path(call)}/")
    items = [_show(call, key, record) for key, record in records]
    return page(call, "compute#operationList", _path(call), items)


for _scope in ("zone", "region", "global"):
    # A caller who may get an operation may wait for it: `wait` has no permission of its own.
    for _verb, _right, _handler in (
        ("get", "get", _read),
        ("wait", "get", wait_operation),
        ("list", "list", _list_operations),
    ):
        _methods = f"{_scope}Operations"
        API.method(f"{_methods}.{_verb}", permission=f"compute.{_methods}.{_right}")(_handler)
