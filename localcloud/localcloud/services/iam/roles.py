"""Roles: Google's predefined ones and a project's own."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import apis
from localcloud.core.store import Record
from localcloud.services.iam.api import API
from localcloud.services.paging import page

_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_FIELDS = ("title", "description", "includedPermissions", "stage")


@lru_cache(maxsize=1)
def _permissions() -> frozenset[str]:
    """Return every permission that a method of the local cloud or a predefined role names."""
    named = {name for names in access.predefined_roles().values() for name in names}
    asked = {name for api in apis() for name in api.permissions()}
    return frozenset(asked | {name for name in named if "*" not in name})


def _predefined(name: str) -> Json:
    patterns = access.predefined_roles()[name]
    included = {
        permission
        for permission in _permissions()
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
    unknown = sorted(set(role.get("includedPermissions", [])) - _permissions())
    if unknown:
        raise invalid(f"Permission {', '.join(unknown)} is not valid.")


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


def _key(call: Call) -> str:
    return f"projects/{call.project}/roles/{call.params['rolesId']}"


def _find(cloud: Cloud, call: Call) -> Record:
    missing = ApiError(404, f"The role named {_key(call)} was not found.")
    return cloud.store.load(access.CUSTOM_ROLE, _key(call), missing)


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
        if cloud.store.get(access.CUSTOM_ROLE, name) is not None:
            raise ApiError(409, f"A role named {role_id} in projects/{call.project} exists.")
        cloud.store.put(access.CUSTOM_ROLE, name, record)
    return record


@API.method("projects.roles.get", permission="iam.roles.get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one of the project's roles."""
    return _find(cloud, call)


@API.method("projects.roles.list", permission="iam.roles.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the project's roles."""
    found = cloud.store.items(access.CUSTOM_ROLE, f"projects/{call.project}/")
    shown = [role for _, role in found if call.flag("showDeleted") or not role.get("deleted")]
    return _listed(call, shown)


@API.method("projects.roles.patch", permission="iam.roles.update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change a role."""
    mask = [field for field in call.arg("updateMask").split(",") if field] or list(_FIELDS)
    _check_permissions(call.body)
    record = _find(cloud, call)
    if call.body.get("etag", record["etag"]) != record["etag"]:
        raise ApiError(409, "There were concurrent changes of the role.", status="ABORTED")
    record |= {field: call.body[field] for field in mask if field in call.body}
    return _put(cloud, call, record)


@API.method("projects.roles.delete", permission="iam.roles.delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a role; it can be brought back, and its name stays taken."""
    return _put(cloud, call, _find(cloud, call) | {"deleted": True})


@API.method("projects.roles.undelete", permission="iam.roles.undelete")
def undelete(cloud: Cloud, call: Call) -> Json:
    """Bring a deleted role back."""
    record = _find(cloud, call)
    record.pop("deleted", None)
    return _put(cloud, call, record)


def _put(cloud: Cloud, call: Call, record: Record) -> Json:
    record["etag"] = _etag(cloud)
    cloud.store.put(access.CUSTOM_ROLE, _key(call), record)
    return record
