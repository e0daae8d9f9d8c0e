"""Reading and changing IAM policies, the same for every kind of resource."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence

from localcloud.core import access, accounts
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Collection
from localcloud.core.tokens import Principal

KINDS = ("user", "serviceAccount", "group", "domain", "principal", "principalSet", "deleted")
_PUBLIC = ("allUsers", "allAuthenticatedUsers")
_EMAIL = re.compile(r"[^@\s:]+@[^@\s:]+")
_DELETED = re.compile(r"(user|serviceAccount|group):[^?]+\?uid=\d+")
_AGENT = re.compile(r"service-\d+@")
_OWN_DOMAIN = ".iam.gserviceaccount.com"


def read(cloud: Cloud, resource: str) -> Json:
    """Return the policy in the form of the API's response."""
    return access.policy(cloud, resource)


def write(cloud: Cloud, resource: str, sent: Json) -> Json:
    """Replace the policy of `resource` by the one in the request body `sent`.

    Raises:
        ApiError: 400 for a role, member or account that does not exist; 409 when the policy was
            changed since the caller read it.
    """
    # Compute Engine also takes bindings and etag beside `policy`, the older form of the request.
    policy = sent.get("policy", sent)
    with cloud.store.locked():
        known = read(cloud, resource)
        etag = policy.get("etag")
        if etag and etag != known["etag"]:
            raise ApiError(
                409,
                "There were concurrent policy changes. Please retry the whole read-modify-write "
                f"with exponential backoff. The request's ETag '{etag}' did not match the current "
                f"policy's ETag '{known['etag']}'.",
                status="ABORTED",
                reason="aborted",
            )
        bindings = [binding for binding in policy.get("bindings", []) if binding.get("members")]
        for binding in bindings:
            check(cloud, binding)
        return _put(cloud, resource, bindings)


def grant(cloud: Cloud, resource: str, role: str, member: str) -> None:
    """Add a member to a role, as Google does for the accounts that it makes itself."""
    with cloud.store.locked():
        bindings = read(cloud, resource)["bindings"]
        _put(cloud, resource, [*bindings, {"role": role, "members": [member]}])


def _put(cloud: Cloud, resource: str, bindings: list[Json]) -> Json:
    known = read(cloud, resource)
    merged = _merged(bindings)
    if merged == known["bindings"]:
        return known
    # Version 3 is for conditions, which no policy here has.
    written = {"version": 1, "etag": _etag(cloud), "bindings": merged}
    cloud.store.put(access.POLICY, resource, written)
    return written


def granted(cloud: Cloud, principal: Principal, resources: list[str], sent: Json) -> Json:
    """Return which of the permissions in `sent` the caller has on one of `resources`."""
    wanted = sent.get("permissions", [])
    have = [name for name in wanted if access.has(cloud, principal, name, resources)]
    return {"permissions": have} if have else {}


def serve(
    collection: Collection,
    find: Callable[[Cloud, Call], str],
    require: Callable[[list[Json]], None] = lambda bindings: None,
) -> None:
    """Register the three methods for the IAM policies of a collection's resources.

    Args:
        collection: whose `getIamPolicy`, `setIamPolicy` and `testIamPermissions` are served.
        find: gets the full name of the resource in the path, which must exist.
        require: refuses bindings that the resource can't have.
    """

    def get(cloud: Cloud, call: Call) -> Json:
        return read(cloud, find(cloud, call))

    def set_(cloud: Cloud, call: Call) -> Json:
        name = find(cloud, call)
        require(call.body.get("policy", {}).get("bindings", []))
        return write(cloud, name, call.body)

    def test(cloud: Cloud, call: Call) -> Json:
        resources = list(collection.resources(cloud, call))
        return granted(cloud, call.principal, resources, call.body)

    collection.method("getIamPolicy")(get)
    collection.method("setIamPolicy")(set_)
    collection.api.method(f"{collection.path}.testIamPermissions")(test)


def add_account(cloud: Cloud, project: str, email: str, role: str, **fields: str) -> None:
    """Make an account that Google gives to a project, once, with its role."""
    name = f"projects/{project}/serviceAccounts/{email}"
    if cloud.store.get(accounts.ACCOUNT, name) is None:
        record = {"name": name, "projectId": project, "email": email, **fields}
        cloud.store.put(accounts.ACCOUNT, name, record)
        grant(cloud, f"projects/{project}", role, f"serviceAccount:{email}")


def forget_member(cloud: Cloud, member: str, unique_id: str) -> None:
    """Mark a deleted account in every policy that names it, as IAM does."""
    _rename(cloud, member, f"deleted:{member}?uid={unique_id}")


def recall_member(cloud: Cloud, member: str, unique_id: str) -> None:
    """Take back `forget_member` for an account that is there again."""
    _rename(cloud, f"deleted:{member}?uid={unique_id}", member)


def _rename(cloud: Cloud, member: str, renamed: str) -> None:
    for resource, policy in cloud.store.items(access.POLICY):
        for binding in policy.get("bindings", []):
            if member in binding["members"]:
                names = [renamed if name == member else name for name in binding["members"]]
                binding["members"] = names
                cloud.store.put(access.POLICY, resource, policy)


def check(cloud: Cloud, binding: Json, kinds: Sequence[str] = KINDS) -> None:
    """Refuse a binding with a role, member or account that does not exist.

    Args:
        cloud: the cloud.
        binding: with `role` and `members`.
        kinds: what a member may begin with.

    Raises:
        ApiError: 400.
    """
    role = binding.get("role", "")
    if binding.get("condition"):
        raise ApiError(501, f"the local cloud evaluates no IAM conditions; {role} has one")
    custom = cloud.store.get(access.CUSTOM_ROLE, role)
    if role not in access.predefined_roles() and (custom is None or custom.get("deleted")):
        raise invalid(f"Role {role} is not supported for this resource.")
    for member in binding["members"]:
        kind, _, name = member.partition(":")
        if member in _PUBLIC:
            continue
        if kind not in kinds or not name:
            raise invalid(
                f"Invalid value for member {member}: it must be allUsers, allAuthenticatedUsers "
                f"or begin with one of {', '.join(f'{kind}:' for kind in kinds)}"
            )
        if kind in ("user", "serviceAccount", "group") and not _EMAIL.fullmatch(name):
            raise invalid(f"Invalid member {member}: {name!r} is no e-mail address.")
        if kind == "deleted" and not _DELETED.fullmatch(name):
            raise invalid(
                f"Invalid member {member}: deleted members have the form deleted:KIND:NAME?uid=N."
            )
        if kind == "serviceAccount" and name.endswith(_OWN_DOMAIN) and not _exists(cloud, name):
            raise invalid(f"Service account {name} does not exist.")


def _exists(cloud: Cloud, email: str) -> bool:
    if _AGENT.match(email):
        # The accounts in whose name Google's services act are Google's own.
        return True
    return accounts.find(cloud, email) is not None


def _merged(bindings: list[Json]) -> list[Json]:
    merged: dict[str, set[str]] = {}
    for binding in bindings:
        merged.setdefault(binding["role"], set()).update(binding["members"])
    return [{"role": role, "members": sorted(members)} for role, members in sorted(merged.items())]


def _etag(cloud: Cloud) -> str:
    # In the form of Google's: a byte 7, then a time.
    return base64.b64encode(b"\x07" + cloud.operations.number().to_bytes(7, "big")).decode()
