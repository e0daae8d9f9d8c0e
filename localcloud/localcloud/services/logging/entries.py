"""Log entries of a project: the lines of its VMs' serial ports, where metadata asks for them."""

from __future__ import annotations

import re
from itertools import chain

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.hooks import Hook
from localcloud.core.registry import Api
from localcloud.machines.serial_logs import RETENTION
from localcloud.services.logging import filters
from localcloud.services.logging.lines import entries_of
from localcloud.services.paging import cut

API = Api("logging", ("v2",))
ENTRY = "log-entry"
"""The store's kind of entries that somebody has written, by `projects/P/INSERT_ID`."""
# Google's default by its discovery document, and its "upper limit of 1000 for page_size" (Google
# Cloud CLI, googlecloudsdk/api_lib/logging/common.py).
_SIZE, _MOST = 50, 1000
_PROJECT = re.compile(r"projects/([^/]+)")
_LOG = re.compile(r"projects/([^/]+)/logs/([\w./%-]{1,512})", re.ASCII)
_PAYLOADS = ("jsonPayload", "textPayload")
written: Hook[[Cloud, str, Json], None] = Hook()
"""Runs when a client has written an entry to a project."""
_DESCENDING = {"": False, "timestamp asc": False, "timestamp desc": True}


def _project_of(body: Json) -> str:
    old = [f"projects/{name}" for name in body.get("projectIds", [])]
    named = [*body.get("resourceNames", []), *old]
    if not named:
        raise invalid("Must supply at least one resource name, but no resource names were given.")
    project = _PROJECT.fullmatch(named[0])
    if project is None or len(named) > 1:
        said = f"the local cloud lists the entries of one project at a time, not of {named}"
        raise ApiError(501, said)
    return project[1]


@API.method("entries.list", permission="logging.logEntries.list", project_of=_project_of)
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the entries that a filter lets through, a page of them."""
    order, token = call.body.get("orderBy", ""), call.body.get("pageToken", "")
    size = min(call.body.get("pageSize", 0) or _SIZE, _MOST)
    if order not in _DESCENDING:
        raise invalid(f"order_by must be one of [timestamp asc, timestamp desc], not {order!r}.")
    if size < 0 or (token and not token.isdigit()):
        raise invalid("Request contains an invalid argument: page_size or page_token.")
    conditions = filters.parse(call.body.get("filter", ""))
    oldest = rfc3339(cloud.clock.now() - RETENTION)
    lines = (entry for log in cloud.machines.serial_logs(call.project) for entry in entries_of(log))
    written = (entry for _, entry in cloud.store.items(ENTRY, f"projects/{call.project}/"))
    found = [
        entry
        for entry in chain(lines, written)
        if entry["timestamp"] >= oldest and all(said.holds(entry) for said in conditions)
    ]
    found.sort(key=lambda entry: (entry["timestamp"], entry["insertId"]), reverse=_DESCENDING[order])
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
    """Keep entries, and tell those who have alerts on them."""
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
