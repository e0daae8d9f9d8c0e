"""Projects' IAM policies."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services import policies
from localcloud.services.resourcemanager.projects import API, PROJECTS, found, name_of

_PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})


@PROJECTS.method("getIamPolicy")
def get(cloud: Cloud, call: Call) -> Json:
    """Return the project's policy."""
    found(cloud, call)
    return policies.read(cloud, name_of(call))


@PROJECTS.method("setIamPolicy")
def set_(cloud: Cloud, call: Call) -> Json:
    """Replace the project's policy."""
    found(cloud, call)
    bindings = call.body.get("policy", {}).get("bindings", [])
    _require_owner(bindings)
    for binding in bindings:
        public = sorted(_PUBLIC.intersection(binding.get("members", [])))
        if public:
            raise invalid(f"Members {', '.join(public)} are not allowed in a project's policy.")
    return policies.write(cloud, name_of(call), call.body)


@API.method("projects.testIamPermissions")
def test(cloud: Cloud, call: Call) -> Json:
    """Return which permissions the caller has on the project."""
    return policies.granted(cloud, call.principal, [name_of(call)], call.body)


def _require_owner(bindings: list[Json]) -> None:
    for binding in bindings:
        members = binding.get("members", [])
        if binding.get("role") == "roles/owner" and any(
            not member.startswith("deleted:") for member in members
        ):
            return
    raise invalid("A project outside an organization must have at least one owner (roles/owner).")
