"""The Resource Manager API's registration, and the project that a call is about."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core import projects
from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record

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
    return cloud.store.load(projects.PROJECT, name_of(call), denied)
