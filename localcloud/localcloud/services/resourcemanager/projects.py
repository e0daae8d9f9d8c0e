"""Projects, as versions 1 and 3 of the API show them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.projects import PROJECT
from localcloud.core.store import Record
from localcloud.services.paging import page
from localcloud.services.resourcemanager.api import API, PROJECTS, found

_TERM = re.compile(r"(\w+)\s*[:=]\s*(\S+)")
_FIELDS = {
    "id": "projectId",
    "projectId": "projectId",
    "name": "name",
    "displayName": "name",
    "lifecycleState": "lifecycleState",
    "state": "lifecycleState",
}


def _v3(record: Record) -> Json:
    return {
        "name": f"projects/{record['projectNumber']}",
        "projectId": record["projectId"],
        "displayName": record["name"],
        "state": record["lifecycleState"],
        "createTime": record["createTime"],
        "updateTime": record["createTime"],
        "etag": f'W/"{record["projectNumber"]}"',
    }


@PROJECTS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a project by its id or number."""
    record = found(cloud, call)
    return record if call.method.version == "v1" else _v3(record)


@API.method("projects.list", versions=("v1",))
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the projects that the caller may see."""
    return page(call, "projects", _visible(cloud, call, call.arg("filter")))


@API.method("projects.search", versions=("v3",))
def search(cloud: Cloud, call: Call) -> Json:
    """Return the projects that the caller may see."""
    shown = [_v3(record) for record in _visible(cloud, call, call.arg("query"))]
    return page(call, "projects", shown)


def _visible(cloud: Cloud, call: Call, filter_: str) -> list[Record]:
    wanted = _terms(filter_)
    return [
        record
        for key, record in cloud.store.items(PROJECT)
        if access.has(cloud, call.principal, "resourcemanager.projects.get", [key])
        and all(fnmatchcase(record[field], pattern) for field, pattern in wanted)
    ]


def _terms(filter_: str) -> list[tuple[str, str]]:
    """Return the fields and patterns of `field:pattern` terms, all of which must fit."""
    found_terms = _TERM.findall(filter_)
    rest = _TERM.sub("", filter_).replace("AND", "").strip(" ()")
    unknown = [field for field, _ in found_terms if field not in _FIELDS]
    if rest or unknown:
        raise invalid(
            f"the local cloud does not understand the filter {filter_!r}: it knows terms "
            f"field:value with {', '.join(_FIELDS)}"
        )
    return [(_FIELDS[field], pattern) for field, pattern in found_terms]
