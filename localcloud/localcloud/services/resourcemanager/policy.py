"""Projects' IAM policies."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services import iam_policy
from localcloud.services.resourcemanager.projects import PROJECTS, found, name_of

_PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})


def _find(cloud: Cloud, call: Call) -> str:
    found(cloud, call)
    return name_of(call)


def _require(bindings: list[Json]) -> None:
    _require_owner(bindings)
    for binding in bindings:
        public = sorted(_PUBLIC.intersection(binding.get("members", [])))
        if public:
            raise invalid(f"Members {', '.join(public)} are not allowed in a project's policy.")


def _require_owner(bindings: list[Json]) -> None:
    for binding in bindings:
        members = binding.get("members", [])
        if binding.get("role") == "roles/owner" and any(
            not member.startswith("deleted:") for member in members
        ):
            return
    raise invalid("A project outside an organization must have at least one owner (roles/owner).")


iam_policy.serve(PROJECTS, _find, _require)
