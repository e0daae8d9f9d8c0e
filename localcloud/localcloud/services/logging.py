"""The Cloud Logging API: entries that clients write, and lines of the serial ports of VMs."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from operator import eq, ge, gt, le, lt

from localcloud.core import Api, ApiError, Cloud, Hook, invalid, rfc3339
from localcloud.core.call import Call, Json, cut
from localcloud.core.cloud import SerialLog
from localcloud.machines.machines import RETENTION

API = Api("logging", ("v2",))
ENTRY = "log-entry"
"""The store's kind of entries that clients have written, by `projects/P/INSERT_ID`."""
# Google's default by its discovery document, and its "upper limit of 1000 for page_size" (Google
# Cloud CLI, googlecloudsdk/api_lib/logging/common.py).
_SIZE, _MOST = 50, 1000
_PROJECT = re.compile(r"projects/([^/]+)")
_LOG = re.compile(r"projects/([^/]+)/logs/([\w./%-]{1,512})", re.ASCII)
_PAYLOADS = ("jsonPayload", "textPayload")
written: Hook[[Cloud, str, Json], None] = Hook()
"""Runs when a client has written an entry to a project."""
_DESCENDING = {"": False, "timestamp asc": False, "timestamp desc": True}


# The path names no project; permissions and the switch of the API are asked of the one in the body.
def _project_of(body: Json) -> str:
    named = body.get("resourceNames", [])
    if not named:
        raise invalid("Must supply at least one resource name, but no resource names were given.")
    project = _PROJECT.fullmatch(named[0])
    if project is None or len(named) > 1:
        message = f"the local cloud lists the entries of one project at a time, not of {named}"
        raise ApiError(501, message)
    return project[1]


@API.method("entries.list", permission="logging.logEntries.list", project_of=_project_of)
def list_(cloud: Cloud, call: Call) -> Json:
    """Return a page of the entries that match a filter.

    Serial ports and written entries are one list, ordered by time and then by their ids: the order
    must not change between two pages.
    """
    order, token = call.body.get("orderBy", ""), call.body.get("pageToken", "")
    size = min(call.body.get("pageSize", 0) or _SIZE, _MOST)
    if order not in _DESCENDING:
        raise invalid(f"order_by must be one of [timestamp asc, timestamp desc], not {order!r}.")
    if size < 0 or (token and not token.isdigit()):
        raise invalid("Request contains an invalid argument: page_size or page_token.")
    conditions = parse(call.body.get("filter", ""))
    oldest = rfc3339(cloud.clock.now() - RETENTION)
    lines = (entry for log in cloud.machines.serial_logs(call.project) for entry in entries_of(log))
    written = (entry for _, entry in cloud.store.items(ENTRY, f"projects/{call.project}/"))
    found = [
        entry
        for entry in chain(lines, written)
        if entry["timestamp"] >= oldest and all(condition.holds(entry) for condition in conditions)
    ]
    found.sort(
        key=lambda entry: (entry["timestamp"], entry["insertId"]), reverse=_DESCENDING[order]
    )
    return cut("entries", found, token, size)


def _project_of_entries(body: Json) -> str:
    default = body.get("logName", "")
    names = {entry.get("logName") or default for entry in body.get("entries", [])}
    projects = {found[1] for found in map(_LOG.fullmatch, names) if found}
    if len(projects) != 1 or not all(map(_LOG.fullmatch, names)):
        raise invalid("log_name must be projects/PROJECT/logs/LOG, of one project for all entries.")
    return projects.pop()


@API.method("entries.write", permission="logging.logEntries.create", project_of=_project_of_entries)
def write(cloud: Cloud, call: Call) -> Json:
    """Keep entries, and trigger the alerts on them.

    All are checked before the first is kept. `insertId` makes a write repeatable: an entry that a
    client sends twice is one.
    """
    common = {key: call.body[key] for key in ("logName", "resource", "labels") if key in call.body}
    entries = [{**common, **entry} for entry in call.body["entries"]]
    for entry in entries:
        if "resource" not in entry or not any(payload in entry for payload in _PAYLOADS):
            raise invalid("Every log entry needs a resource and a payload.")
    now = rfc3339(cloud.clock.now())
    for entry in entries:
        number = entry.get("insertId") or f"w{cloud.operations.number()}"
        kept = {"timestamp": now, **entry, "insertId": number, "receiveTimestamp": now}
        cloud.store.put(ENTRY, f"projects/{call.project}/{number}", kept)
        written.run(cloud, call.project, kept)
    return {}


# Filters: comparisons joined by AND, a part of Google's language.
# Source: cloud.google.com/logging/docs/view/logging-query-language. Text is compared without regard
# to case; `:` finds a part of it.

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_COMPARISON = re.compile(
    rf"([A-Za-z]\w*(?:\.(?:\w+|{_QUOTED}))*)\s*(<=|>=|=(?!~)|:|<|>)\s*({_QUOTED}|[^\s()\"]+)"
)
_PART = re.compile(rf"{_QUOTED}|\w+")
_AND = re.compile(r"\bAND\b")
_ORDERS: dict[str, Callable[[float, float], bool]] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
_TEXTS = ("logName", "textPayload", "insertId")


@dataclass(frozen=True)
class Comparison:
    """A field, an operator and a value."""

    path: tuple[str, ...]
    operator: str
    value: str

    def holds(self, entry: Json) -> bool:
        """Return whether an entry has the field, and it compares so.

        A field that is not there fails every comparison, as in Google's language.
        """
        found: object = entry
        for part in self.path:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(found, str):
            return False
        if self.path == ("timestamp",):
            return _ORDERS[self.operator](_seconds(found), _seconds(self.value))
        text, value = found.lower(), self.value.lower()
        return text == value if self.operator == "=" else value in text


def parse(text: str) -> list[Comparison]:
    """Return the comparisons that an entry must pass; 400 or 501 for a filter beyond them.

    Brackets are allowed around any of them, since AND is the only operator: they change nothing.
    """
    found, rest = _COMPARISON.findall(text), _COMPARISON.sub("", text)
    joined = _AND.sub("", rest).strip(" ()\n")
    if joined or rest.count("(") != rest.count(")") or rest.count("AND") >= max(1, len(found)):
        raise ApiError(501, f"the local cloud's filters are comparisons joined by AND, not {text}")
    return [_comparison(*compared) for compared in found]


# Fields that Google has and the local cloud does not fill would match nothing: 501 says so instead.
def _comparison(path: str, operator: str, value: str) -> Comparison:
    parts = tuple(_plain(part) for part in _PART.findall(path))
    compared = Comparison(parts, operator, _plain(value))
    if parts == ("timestamp",) and operator in _ORDERS:
        _seconds(compared.value)
        return compared
    known = path in _TEXTS or parts == ("resource", "type")
    known = known or parts[:-1] in (("labels",), ("resource", "labels"))
    if known and operator in ("=", ":"):
        return compared
    raise ApiError(501, f"the local cloud does not compare the field {path} by {operator}")


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _seconds(moment: str) -> float:
    try:
        parsed = datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError:
        raise invalid(f"Unparseable filter: {moment!r} is not a timestamp") from None
    if parsed.tzinfo is None:
        raise invalid(f"Unparseable filter: {moment!r} is a timestamp without a zone")
    return parsed.timestamp()


# The lines of a serial port as log entries.
# Their form (name of the log, kind of resource, label with the VM's name) is that of the entries in
# the tests of GoogleCloudPlatform/khi, which reads them from real projects.

_SERIAL_LOG = "projects/{}/logs/serialconsole.googleapis.com%2Fserial_port_1_output"
# Seconds since the boot, before each line that is not the firmware's.
_ELAPSED = re.compile(r"\[ *(\d+\.\d+)\] ")


def entries_of(log: SerialLog) -> Iterator[Json]:
    """Yield an entry for each whole line that is not empty.

    The last line may still grow, so it is left for later: an entry never changes.
    """
    labels = {"instance_id": str(log.number), "project_id": log.project, "zone": log.zone}
    common: Json = {
        "logName": _SERIAL_LOG.format(log.project),
        "resource": {"type": "gce_instance", "labels": labels},
        "labels": {"compute.googleapis.com/resource_name": log.name},
    }
    number = count()
    for line, when in _lines_of(log):
        yield {
            **common,
            "textPayload": line,
            "timestamp": rfc3339(when),
            "receiveTimestamp": rfc3339(when),
            "insertId": f"{log.number:x}-{next(number):010d}",
        }


# Lines carry the seconds since the boot; one without, such as the firmware's, has the time of the
# line before it.
def _lines_of(log: SerialLog) -> Iterator[tuple[str, float]]:
    ends = [begin for begin, _ in log.boots[1:]] + [len(log.output)]
    for (begin, booted), end in zip(log.boots, ends, strict=False):
        *lines, _ = log.output[begin:end].decode("utf-8", "replace").split("\n")
        elapsed = 0.0
        for line in lines:
            if found := _ELAPSED.match(line):
                elapsed = float(found[1])
            if line.strip():
                yield line, booted + elapsed
