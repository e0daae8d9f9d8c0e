"""Roles: Google's predefined ones and a project's own.

A deleted role can be brought back for 7 days. Then it is gone, and its ID is free after 30 more
(docs.cloud.google.com/iam/docs/creating-custom-roles).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from localcloud.core import access, permissions, projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.store import Record
from localcloud.services.iam.api import API
from localcloud.services.paging import cut, page

_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_PROJECTS = "//cloudresourcemanager.googleapis.com/projects/"
_DAY = 24 * 3600.0
_RESTORABLE, _RESERVED = 7 * _DAY, 37 * _DAY
_FIELDS = ("title", "description", "includedPermissions", "stage")


def _predefined(name: str) -> Json:
    patterns = access.predefined_roles()[name]
    included = {
        permission
        for permission in permissions.known()
        if any(fnmatchcase(permission, pattern) for pattern in patterns)
    }
    return {
        "name": name,
        "title": name.removeprefix("roles/"),
        "stage": "GA",
        "includedPermissions": sorted(included),
    }


def _listed(call: Call, roles: list[Json]) -> Json:
    """Return a page of roles; their permissions are left out unless the caller asks for them."""
    if call.arg("view") != "FULL":
        roles = [{k: v for k, v in role.items() if k != "includedPermissions"} for role in roles]
    return page(call, "roles", roles, size=300)


def _check_permissions(role: Json) -> None:
    # Google's words: github.com/hashicorp/terraform-provider-google/issues/14033.
    wrong = [name for name in role.get("includedPermissions", []) if not permissions.counts(name)]
    if wrong:
        raise invalid(f"Permission {', '.join(sorted(wrong))} is not valid.")


@API.method("roles.get")
def get_predefined(cloud: Cloud, call: Call) -> Json:
    """Return one of Google's roles."""
    name = f"roles/{call.params['rolesId']}"
    if name not in access.predefined_roles():
        raise ApiError(404, f"The role named {name} was not found.")
    return _predefined(name)


@API.method("roles.list")
def list_predefined(cloud: Cloud, call: Call) -> Json:
    """List Google's roles, as far as the local cloud knows them."""
    return _listed(call, [_predefined(name) for name in sorted(access.predefined_roles())])


@API.method("permissions.queryTestablePermissions")
def query_testable_permissions(cloud: Cloud, call: Call) -> Json:
    """List the permissions that a resource, here a project, can be tested for."""
    resource = call.body.get("fullResourceName", "")
    project = resource.removeprefix(_PROJECTS)
    if project == resource or projects.find(cloud, project) is None:
        raise invalid(f"Invalid resource name '{resource}': the local cloud has {_PROJECTS}ID.")
    names = filter(permissions.counts, sorted(permissions.known()))
    items = [{"name": name, "stage": "GA"} for name in names]
    size = min(call.body.get("pageSize") or 100, 1000)
    return cut("permissions", items, call.body.get("pageToken", ""), size)


def _key(call: Call) -> str:
    return f"projects/{call.project}/roles/{call.params['rolesId']}"


def _find(cloud: Cloud, call: Call) -> Record:
    missing = ApiError(404, f"The role named {_key(call)} was not found.")
    record = cloud.store.load(access.CUSTOM_ROLE, _key(call), missing)
    if _is_gone(cloud, record):
        raise missing
    return record


def _is_gone(cloud: Cloud, record: Record) -> bool:
    return bool(record.get("deleted")) and _age(cloud, record) >= _RESTORABLE


def _age(cloud: Cloud, record: Record) -> float:
    """Return for how long a role has been deleted."""
    since: float = record.get("_deleted", 0.0)
    return cloud.clock.now() - since


def _view(record: Record) -> Json:
    return {name: value for name, value in record.items() if not name.startswith("_")}


def _require_free(cloud: Cloud, name: str) -> None:
    """Raise what Google answers when a role has this name, or had it not long ago."""
    record = cloud.store.get(access.CUSTOM_ROLE, name)
    if record is None:
        return
    short = name.rpartition("/")[2]
    if not record.get("deleted"):
        project = name.partition("/roles/")[0]
        raise ApiError(409, f"A role named {short} in {project} already exists.")
    if not _is_gone(cloud, record):
        raise failed_precondition(
            f"You can't create a role with role_id ({short}) where there is an existing role with "
            "that role_id in a deleted state."
        )
    if _age(cloud, record) < _RESERVED:
        raise failed_precondition(
            f"You can't create a role_id ({short}) which has been marked for deletion."
        )


def _etag(cloud: Cloud) -> str:
    return f"Bw{cloud.operations.number()}="


@API.method("projects.roles.create", permission="iam.roles.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a role of the project's own."""
    role_id = call.body.get("roleId", "")
    if not _ID.fullmatch(role_id):
        raise invalid(f'Invalid role id "{role_id}": 3 to 64 letters, digits, _ and .')
    name = f"projects/{call.project}/roles/{role_id}"
    sent = call.body.get("role", {})
    _check_permissions(sent)
    record = {"name": name, "etag": _etag(cloud)}
    record |= {field: sent[field] for field in _FIELDS if field in sent}
    with cloud.store.locked():
        _require_free(cloud, name)
        cloud.store.put(access.CUSTOM_ROLE, name, record)
    return record


@API.method("projects.roles.get", permission="iam.roles.get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one of the project's roles."""
    return _view(_find(cloud, call))


@API.method("projects.roles.list", permission="iam.roles.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the project's roles."""
    found = cloud.store.items(access.CUSTOM_ROLE, f"projects/{call.project}/")
    shown = [
        _view(role)
        for _, role in found
        if not role.get("deleted") or (call.flag("showDeleted") and not _is_gone(cloud, role))
    ]
    return _listed(call, shown)


@API.method("projects.roles.patch", permission="iam.roles.update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change a role."""
    mask = call.mask() or list(_FIELDS)
    _check_permissions(call.body)
    record = _find(cloud, call)
    if record.get("deleted"):
        raise failed_precondition(f"The role {_key(call)} is deleted: undelete it first.")
    if call.body.get("etag", record["etag"]) != record["etag"]:
        raise ApiError(409, "There were concurrent changes of the role.", status="ABORTED")
    record |= {field: call.body[field] for field in mask if field in call.body}
    return _put(cloud, call, record)


@API.method("projects.roles.delete", permission="iam.roles.delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a role; it can be brought back, and its ID stays taken."""
    gone = {"deleted": True, "_deleted": cloud.clock.now()}
    return _put(cloud, call, _find(cloud, call) | gone)


@API.method("projects.roles.undelete", permission="iam.roles.undelete")
def undelete(cloud: Cloud, call: Call) -> Json:
    """Bring a deleted role back."""
    record = _find(cloud, call)
    for field in ("deleted", "_deleted"):
        record.pop(field, None)
    return _put(cloud, call, record)


def _put(cloud: Cloud, call: Call, record: Record) -> Json:
    record["etag"] = _etag(cloud)
    cloud.store.put(access.CUSTOM_ROLE, _key(call), record)
    return _view(record)
