"""Projects, as versions 1 and 3 of the API show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from localcloud.core import access
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.projects import PROJECT
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record

_TERM = re.compile(r"(\w+)\s*[:=]\s*(\S+)")
_FIELDS = {
    "id": "projectId",
    "projectId": "projectId",
    "name": "name",
    "displayName": "name",
    "lifecycleState": "lifecycleState",
    "state": "lifecycleState",
}


# Google asks for the API in the project of the caller's credentials, not in the one in the path;
# a developer's token belongs to a client of Google's own, where it is enabled.
API = Api("cloudresourcemanager", ("v1", "v3"), gated=False)


def name_of(call: Call) -> str:
    """Return the project's name, `projects/ID`."""
    named = {"projectId", "projectsId", "resource"} & set(call.params)
    short = call.params[named.pop()].removeprefix("projects/")
    return f"projects/{short}"


def resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Whose policy counts: the project's."""
    return (name_of(call),)


PROJECTS = Collection(API, "projects", "resourcemanager.projects", resources)


def found(cloud: Cloud, call: Call) -> Record:
    """Return the project's record.

    Raises:
        ApiError: 403 when there is none, which Google doesn't tell from a missing permission.
    """
    denied = ApiError(403, "The caller does not have permission")
    return cloud.store.load(PROJECT, name_of(call), denied)


def shown_as(record: Record, version: str) -> Json:
    """Return a project as a version of the API shows it."""
    return record if version == "v1" else _v3(record)


def _v3(record: Record) -> Json:
    return {
        "name": f"projects/{record['projectNumber']}",
        "projectId": record["projectId"],
        "displayName": record["name"],
        "state": record["lifecycleState"],
        "createTime": record["createTime"],
        "updateTime": record["createTime"],
        "etag": f'W/"{record["projectNumber"]}"',
        **({"labels": record["labels"]} if "labels" in record else {}),
    }


@PROJECTS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a project by its id or number."""
    return shown_as(found(cloud, call), call.method.version)


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
