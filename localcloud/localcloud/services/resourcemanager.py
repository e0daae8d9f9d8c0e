"""The Resource Manager API: projects and their IAM policies."""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from localcloud.core import Api, ApiError, Cloud, Collection, access, invalid, not_found, projects
from localcloud.core.call import Call, Json, page
from localcloud.core.store import Record, Work, effect, show_operation
from localcloud.services import iam_policy

_TERM = re.compile(r"(\w+)\s*[:=]\s*(\S+)")
# What a filter may name, and the record's field for it.
_FIELDS = {
    **dict.fromkeys(("id", "projectId"), "projectId"),
    **{field: field for field in ("name", "lifecycleState")},
}
# Google asks for the API in the project of the caller's credentials, not in the one in the path;
# a developer's token belongs to a client of Google's own, where it is enabled.
API = Api("cloudresourcemanager", ("v1",), gated=False)


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
    return cloud.store.load(projects.PROJECT, name_of(call), denied)


@PROJECTS.method("get")
def _get(cloud: Cloud, call: Call) -> Json:
    return load_project(cloud, call)


@API.method("projects.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """List the projects that the caller may see and that fit all terms `field:pattern`."""
    filter_ = call.arg("filter")
    terms, rest = _TERM.findall(filter_), _TERM.sub("", filter_)
    if rest.replace("AND", "").strip(" ()") or not {field for field, _ in terms} <= set(_FIELDS):
        raise invalid(
            f"the local cloud does not understand the filter {filter_!r}: it knows terms "
            f"field:value with {', '.join(_FIELDS)}"
        )
    found = [
        record
        for key, record in cloud.store.items(projects.PROJECT)
        if access.has(cloud, call.principal, "resourcemanager.projects.get", [key])
        and all(fnmatchcase(record[_FIELDS[field]], pattern) for field, pattern in terms)
    ]
    return page(call, "projects", found)


# IAM policies of projects.


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
        if public := sorted(iam_policy.PUBLIC.intersection(binding.get("members", []))):
            raise invalid(f"Members {', '.join(public)} are not allowed in a project's policy.")


def _existing(cloud: Cloud, call: Call) -> str:
    load_project(cloud, call)
    return name_of(call)


iam_policy.serve(PROJECTS, _existing, _require_allowed)


# New projects: without an organization or billing account, owned by the caller.

# cloud.google.com/resource-manager/docs/creating-managing-projects
_ID = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")

_TYPE = "type.googleapis.com/google.cloudresourcemanager.v1"


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
    if cloud.store.get(projects.PROJECT, f"projects/{project}") is not None:
        raise ApiError(409, "Requested entity already exists", status="ALREADY_EXISTS")
    fields = {"name": call.body.get("name") or project} | call.sent(("labels",))
    arguments = {"project": project, "owner": member, "fields": fields}
    name = f"operations/cp.{cloud.operations.number()}"
    work = Work("project.create", arguments, cloud.seconds("project.create"))
    return _view(name, cloud.operations.start(f"resourcemanager/{name}", work))


# New projects have no API enabled but those that a later call enables.
@effect("project.create")
def _create(cloud: Cloud, project: str, owner: str, fields: Record) -> Record:
    projects.ensure(cloud, project, owner=owner, apis=())
    with cloud.store.locked():
        record: Record = (cloud.store.get(projects.PROJECT, f"projects/{project}") or {}) | fields
        cloud.store.put(projects.PROJECT, f"projects/{project}", record)
    return record


@API.method("operations.get")
def _get_operation(cloud: Cloud, call: Call) -> Json:
    name = f"operations/{call.params['operationsId']}"
    key = f"resourcemanager/{name}"
    return _view(name, cloud.operations.load(key, not_found(name)))


def _view(name: str, record: Record) -> Json:
    if not record["done"]:
        return {"name": name}
    status = {"@type": f"{_TYPE}.ProjectCreationStatus", "gettable": True, "ready": True}
    project = {"@type": f"{_TYPE}.Project"}
    operation = show_operation(name, status, record, lambda made: project | made)
    # The metadata has no field for the end.
    status.pop("endTime")
    return operation
