"""New projects: in no organization, on no billing account, owned by the caller."""

from __future__ import annotations

import re

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid, not_found
from localcloud.core.projects import PROJECT
from localcloud.core.store import Record, Work, effect, show_operation
from localcloud.services.resourcemanager.projects import API, shown_as

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
    """Create a project, with the caller as its owner."""
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


@effect("project.create")
def _create(cloud: Cloud, project: str, owner: str, fields: Record) -> Record:
    projects.ensure(cloud, project, owner=owner, apis=())
    with cloud.store.locked():
        record: Record = (cloud.store.get(PROJECT, f"projects/{project}") or {}) | fields
        cloud.store.put(PROJECT, f"projects/{project}", record)
    return record


@API.method("operations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Return how far a creation is."""
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
    status.pop("endTime")
    return operation
