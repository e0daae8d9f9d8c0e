"""The Resource Manager API: projects and their IAM policies."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from localcloud.core import access, projects
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid, not_found
from localcloud.core.projects import PROJECT
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record, Work, effect, show_operation
from localcloud.services import iam_policy

_TERM = re.compile(r"(\w+)\s*[:=]\s*(\S+)")
# What a filter may name, in the words of both versions, and the record's field for it.
_FIELDS = {
    **dict.fromkeys(("id", "projectId"), "projectId"),
    **dict.fromkeys(("name", "displayName"), "name"),
    **dict.fromkeys(("lifecycleState", "state"), "lifecycleState"),
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


def load_project(cloud: Cloud, call: Call) -> Record:
    """Return the project's record; 403 when there is none, as for a missing permission.

    Ids of projects are global: 404 would tell which ones others have taken.
    """
    denied = ApiError(403, "The caller does not have permission")
    return cloud.store.load(PROJECT, name_of(call), denied)


def shown_as(record: Record, version: str) -> Json:
    """Return a project as a version of the API shows it; the record is as v1 does."""
    if version == "v1":
        return record
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
def _get(cloud: Cloud, call: Call) -> Json:
    return shown_as(load_project(cloud, call), call.method.version)


@API.method("projects.list", versions=("v1",))
def _list_(cloud: Cloud, call: Call) -> Json:
    return page(call, "projects", _visible(cloud, call, call.arg("filter")))


@API.method("projects.search", versions=("v3",))
def _search(cloud: Cloud, call: Call) -> Json:
    shown = [shown_as(record, "v3") for record in _visible(cloud, call, call.arg("query"))]
    return page(call, "projects", shown)


def _visible(cloud: Cloud, call: Call, filter_: str) -> list[Record]:
    """Return the projects that the caller may see and that fit all terms `field:pattern`."""
    terms, rest = _TERM.findall(filter_), _TERM.sub("", filter_)
    if rest.replace("AND", "").strip(" ()") or not {field for field, _ in terms} <= set(_FIELDS):
        raise invalid(
            f"the local cloud does not understand the filter {filter_!r}: it knows terms "
            f"field:value with {', '.join(_FIELDS)}"
        )
    return [
        record
        for key, record in cloud.store.items(PROJECT)
        if access.has(cloud, call.principal, "resourcemanager.projects.get", [key])
        and all(fnmatchcase(record[_FIELDS[field]], pattern) for field, pattern in terms)
    ]


# IAM policies of projects.

_PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})


def _require_allowed(bindings: list[Json]) -> None:
    """Refuse what only an organization's project may have: no owner, or members from anywhere."""
    owners = [
        member
        for binding in bindings
        for member in binding.get("members", [])
        if binding.get("role") == "roles/owner" and not member.startswith("deleted:")
    ]
    if not owners:
        message = "A project outside an organization must have at least one owner (roles/owner)."
        raise invalid(message)
    for binding in bindings:
        if public := sorted(_PUBLIC.intersection(binding.get("members", []))):
            raise invalid(f"Members {', '.join(public)} are not allowed in a project's policy.")


def _existing(cloud: Cloud, call: Call) -> str:
    load_project(cloud, call)
    return name_of(call)


iam_policy.serve(PROJECTS, _existing, _require_allowed)


# New projects: without an organization or billing account, owned by the caller.

# cloud.google.com/resource-manager/docs/creating-managing-projects
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")

_GOOGLE = "type.googleapis.com/google"
# By version: the package of its types, and the type of an operation's metadata.
_TYPES = {
    "v1": (f"{_GOOGLE}.cloudresourcemanager.v1", "ProjectCreationStatus"),
    "v3": (f"{_GOOGLE}.cloud.resourcemanager.v3", "CreateProjectMetadata"),
}


@API.method("projects.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a project, with the caller as its owner.

    It takes no permission: outside an organization every user may create some.
    """
    project = call.body.get("projectId", "")
    member = call.principal.member
    if not _ID.fullmatch(project):
        raise invalid(
            f"field [project_id] has issue [project_id {project!r} must be 6 to 30 lower-case "
            "letters, digits or hyphens, begin with a letter and not end with a hyphen]"
        )
    if call.body.get("parent"):
        # There is no organization and no folder here.
        raise ApiError(403, "The caller does not have permission")
    if member.startswith("serviceAccount:"):
        raise ApiError(403, "Service accounts cannot create projects without a parent.")
    if cloud.store.get(PROJECT, f"projects/{project}") is not None:
        raise ApiError(409, "Requested entity already exists", status="ALREADY_EXISTS")
    named = call.body.get("name" if call.method.version == "v1" else "displayName") or project
    arguments = {"project": project, "owner": member, "fields": {"name": named}}
    arguments["fields"] |= call.sent(("labels",))
    name = f"operations/cp.{cloud.operations.number()}"
    work = Work("project.create", arguments, cloud.seconds("project.create"))
    return _view(call, name, cloud.operations.start(f"resourcemanager/{name}", work))


# New projects have no API enabled but those that a later call enables.
@effect("project.create")
def _create(cloud: Cloud, project: str, owner: str, fields: Record) -> Record:
    projects.ensure(cloud, project, owner=owner, apis=())
    with cloud.store.locked():
        record: Record = (cloud.store.get(PROJECT, f"projects/{project}") or {}) | fields
        cloud.store.put(PROJECT, f"projects/{project}", record)
    return record


@API.method("operations.get")
def _get_operation(cloud: Cloud, call: Call) -> Json:
    name = f"operations/{call.params['operationsId']}"
    key = f"resourcemanager/{name}"
    return _view(call, name, cloud.operations.load(key, not_found(name)))


def _view(call: Call, name: str, record: Record) -> Json:
    if not record["done"]:
        return {"name": name}
    version = call.method.version
    package, metadata = _TYPES[version]

    def response(made: Json) -> Json:
        return {"@type": f"{package}.Project", **shown_as(made, version)}

    status = {"@type": f"{package}.{metadata}", "gettable": True, "ready": True}
    operation = show_operation(name, status, record, response)
    # The metadata of both versions have no field for the end.
    status.pop("endTime")
    return operation
