"""The Resource Manager API: projects and their IAM policies."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Api
from localcloud.core.store import Record
from localcloud.services import policies

# Google lets nobody read a project by this API before it is enabled; gcloud and the provider
# count on reading it, and a fresh local project would only be a riddle without.
API = Api("cloudresourcemanager", ("v1", "v3"), gated=False)


def _name(cloud: Cloud, call: Call) -> str:
    for key in ("projectId", "projectsId", "resource"):
        if key in call.params:
            short = call.params[key].removeprefix("projects/")
            return f"projects/{projects.identifier(cloud, short)}"
    raise ApiError(400, "the request names no project")


def _project(cloud: Cloud, call: Call) -> Sequence[str]:
    return (_name(cloud, call),)


def _found(cloud: Cloud, call: Call) -> Record:
    record = cloud.store.get(projects.PROJECT, _name(cloud, call))
    if record is None:
        # Google does not tell a project that is missing from one that is somebody else's.
        raise ApiError(
            403,
            f"The caller does not have permission on {_name(cloud, call)} (or it may not exist).",
        )
    return record


def _v3(record: Record) -> Json:
    return {
        "name": f"projects/{record['projectNumber']}",
        "projectId": record["projectId"],
        "displayName": record["name"],
        "state": record["lifecycleState"],
        "createTime": record["createTime"],
        "etag": "W/local",
    }


@API.method("projects.get", permission="resourcemanager.projects.get", resources=_project)
def get(cloud: Cloud, call: Call) -> Json:
    """A project by its id or number."""
    record = _found(cloud, call)
    return record if call.method.version == "v1" else _v3(record)


@API.method("projects.list", versions=("v1",))
def list_v1(cloud: Cloud, call: Call) -> Json:
    """All projects."""
    return {"projects": [record for _, record in cloud.store.items(projects.PROJECT)]}


@API.method("projects.search", versions=("v3",))
def search(cloud: Cloud, call: Call) -> Json:
    """All projects."""
    return {"projects": [_v3(record) for _, record in cloud.store.items(projects.PROJECT)]}


@API.method(
    "projects.getIamPolicy",
    permission="resourcemanager.projects.getIamPolicy",
    resources=_project,
)
def get_iam_policy(cloud: Cloud, call: Call) -> Json:
    """The project's policy."""
    _found(cloud, call)
    return policies.read(cloud, _name(cloud, call))


@API.method(
    "projects.setIamPolicy",
    permission="resourcemanager.projects.setIamPolicy",
    resources=_project,
)
def set_iam_policy(cloud: Cloud, call: Call) -> Json:
    """Replace the project's policy."""
    _found(cloud, call)
    return policies.write(cloud, _name(cloud, call), call.body)


@API.method("projects.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    """Which permissions the caller has on the project."""
    return policies.granted(cloud, call.principal, [_name(cloud, call)], call.body)
