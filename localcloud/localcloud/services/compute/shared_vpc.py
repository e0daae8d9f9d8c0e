"""Shared VPC: a host project lends its networks to the service projects that are attached to it.

Source: cloud.google.com/vpc/docs/shared-vpc, and the API's reference, where it is called XPN. There
are no organizations here, so whoever has the permission in the host project may set it up.
"""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record, Work
from localcloud.services.compute import operations
from localcloud.services.compute.api import API

_HOST = "compute-shared-vpc"
_PERMISSION = "compute.organizations"


def host_of(cloud: Cloud, project: str) -> str:
    """Return the host project that a service project is attached to, or an empty string."""
    hosts = (host for host, record in cloud.store.items(_HOST) if project in record["attached"])
    return next(hosts, "")


def is_host(cloud: Cloud, project: str) -> bool:
    """Return whether a project lends its networks."""
    return cloud.store.get(_HOST, project) is not None


def require_lent(cloud: Cloud, project: str, path: str) -> None:
    """Refuse a network or subnetwork of a project that does not lend it to `project`.

    Raises:
        ApiError: 400.
    """
    owner = path.split("/")[1]
    if owner not in (project, host_of(cloud, project)):
        raise ApiError(
            400,
            f"Invalid resource usage: 'Cross-project references for this resource are not "
            f"allowed: {path}.'.",
            reason="invalidUsage",
        )


def require_own(project: str, path: str) -> None:
    """Refuse a network of another project, for what must be in the network's own.

    Raises:
        ApiError: 400.
    """
    if path.split("/")[1] != project:
        raise invalid(
            f"Invalid value for field 'resource.network': '{path}'. Cross project referencing is "
            "not allowed for this resource."
        )


@API.method("projects.enableXpnHost", permission=f"{_PERMISSION}.enableXpnHost")
def enable_host(cloud: Cloud, call: Call) -> Json:
    """Make a project a host project."""
    if host_of(cloud, call.project):
        raise invalid(f"The project '{call.project}' is attached to a host project itself.")
    if not is_host(cloud, call.project):
        cloud.store.put(_HOST, call.project, {"attached": []})
    return _operation(cloud, call, "enableXpnHost")


@API.method("projects.disableXpnHost", permission=f"{_PERMISSION}.disableXpnHost")
def disable_host(cloud: Cloud, call: Call) -> Json:
    """Make a host project a plain one; no project may be attached any more."""
    if _host(cloud, call.project)["attached"]:
        raise invalid(f"Service projects are still attached to '{call.project}'.")
    cloud.store.delete(_HOST, call.project)
    return _operation(cloud, call, "disableXpnHost")


@API.method("projects.enableXpnResource", permission=f"{_PERMISSION}.enableXpnResource")
def attach(cloud: Cloud, call: Call) -> Json:
    """Attach a service project to a host project; it can have only one."""
    project = _named(call)
    with cloud.store.locked():
        record = _host(cloud, call.project)
        if is_host(cloud, project) or host_of(cloud, project) not in ("", call.project):
            raise invalid(f"'{project}' is a host project, or attached to another one.")
        attached = {*record["attached"], project}
        cloud.store.put(_HOST, call.project, {"attached": sorted(attached)})
    return _operation(cloud, call, "enableXpnResource")


@API.method("projects.disableXpnResource", permission=f"{_PERMISSION}.disableXpnResource")
def detach(cloud: Cloud, call: Call) -> Json:
    """Detach a service project."""
    with cloud.store.locked():
        left = [name for name in _host(cloud, call.project)["attached"] if name != _named(call)]
        cloud.store.put(_HOST, call.project, {"attached": left})
    return _operation(cloud, call, "disableXpnResource")


@API.method("projects.getXpnResources", permission="compute.projects.get")
def list_attached(cloud: Cloud, call: Call) -> Json:
    """List the service projects of a host project."""
    found = _host(cloud, call.project)["attached"]
    return {
        "kind": "compute#projectsGetXpnResources",
        "resources": [{"type": "PROJECT", "id": name} for name in found],
    }


def _host(cloud: Cloud, project: str) -> Record:
    not_one = invalid(f"The project '{project}' is not a shared VPC host project.")
    return cloud.store.load(_HOST, project, not_one)


def _named(call: Call) -> str:
    resource = call.body.get("xpnResource", {})
    if resource.get("type", "PROJECT") != "PROJECT" or not resource.get("id"):
        raise invalid("Invalid value for field 'xpnResource': a PROJECT with its id is required.")
    return str(resource["id"])


def _operation(cloud: Cloud, call: Call, kind: str) -> Json:
    target = f"projects/{call.project}"
    work = Work("compute.settle", {"path": target}, cloud.seconds("network.update"))
    return operations.start(cloud, call, work, scope="global", kind=kind, target=target)
