"""Reading and changing IAM policies, the same for every kind of resource."""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence

from localcloud.core import ApiError, Cloud, Collection, access, conditions, invalid
from localcloud.core.call import Call, Json, Principal, same_bytes
from localcloud.core.store import POLICY, Record

Condition = tuple[tuple[str, str], ...]
# Members of policies: docs.cloud.google.com/iam/docs/principal-identifiers.
KINDS = ("user", "serviceAccount", "group", "domain", "principal", "principalSet", "deleted")
# Buckets' alone: cloud.google.com/storage/docs/access-control/iam#convenience.
_CONVENIENCE = ("projectOwner", "projectEditor", "projectViewer")
_CONDITIONAL = 3
"""The version of policies with conditions."""
_BASIC = ("roles/owner", "roles/editor", "roles/viewer")
PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})
"""Members that let in people whom no one named."""
# "Resource types that accept this attribute" (`conditions.MODIFIED_GRANTS`) are projects and above.
_PROJECT = re.compile(r"projects/[^/]+")
_EMAIL = re.compile(r"[^@\s:]+@[^@\s:]+")
_DELETED = re.compile(r"(user|serviceAccount|group):[^?]+\?uid=\d+")


def write(cloud: Cloud, resource: str, sent: Json) -> Json:
    """Replace the policy of `resource` by the one in the request body `sent`.

    Raises:
        ApiError: 400 for a role, member or account that does not exist; 409, of a bucket 412, when
            the policy was changed since the caller read it.
    """
    # The request for a bucket is the policy itself, as Storage has it; others wrap it.
    policy = sent.get("policy", sent)
    of_bucket = resource.startswith("buckets/")
    with cloud.store.locked():
        known = access.policy(cloud, resource)
        sent_etag = policy.get("etag")
        if sent_etag and not same_bytes(sent_etag, known["etag"]):
            message = (
                "There were concurrent policy changes. Please retry the whole read-modify-write "
                f"with exponential backoff. The request's ETag '{sent_etag}' did not match the "
                f"current policy's ETag '{known['etag']}'."
            )
            if of_bucket:
                raise ApiError(412, message)
            raise ApiError(409, message, status="ABORTED", reason="aborted")
        sent_bindings = policy.get("bindings") or []
        bindings = [binding for binding in sent_bindings if binding.get("members")]
        if "bindings" not in (sent.get("updateMask") or "bindings"):
            bindings = known["bindings"]
        # The whole policy is refused for one wrong binding: a part of it would be another policy.
        for binding in bindings:
            # Of what a project has, conditions know buckets and objects by their names.
            attributes: tuple[str, ...] = ("resource",) if of_bucket else ()
            if _PROJECT.fullmatch(resource):
                stores = binding.get("role", "").startswith("roles/storage.")
                attributes = ("api", "resource") if stores else ("api",)
            check(cloud, binding, (*KINDS, *_CONVENIENCE) if of_bucket else KINDS, attributes)
        require_version(policy, bindings, known["bindings"])
        return put(cloud, resource, bindings)


def grant(cloud: Cloud, resource: str, role: str, member: str) -> None:
    """Add a member to a role, as Google does for the accounts that it makes itself.

    It takes no permission, and no condition of the policy is lost.
    """
    with cloud.store.locked():
        bindings = access.policy(cloud, resource)["bindings"]
        put(cloud, resource, [*bindings, {"role": role, "members": [member]}])


def put(cloud: Cloud, resource: str, bindings: list[Json]) -> Json:
    """Replace bindings by others that are right, and return the policy."""
    known = access.policy(cloud, resource)
    # A policy that says the same keeps its etag: a caller that read it before can still write.
    merged = _merged(bindings)
    if merged == known["bindings"]:
        return known
    version = _CONDITIONAL if any(map(condition_of, merged)) else 1
    written = {"version": version, "etag": etag(cloud), "bindings": merged}
    cloud.store.put(POLICY, resource, written)
    return written


def granted(
    cloud: Cloud, principal: Principal, resources: Sequence[str], wanted: list[str], service: str
) -> Json:
    """Return which permissions the caller has on one of `resources`, which are of a service."""
    for name in wanted:
        if not access.is_testable(name, service):
            raise invalid(f"Permission {name} is not valid for this resource.")
    # The caller needs no permission to ask about those that it has.
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
        version = call.body.get("options", {}).get("requestedPolicyVersion")
        version = version or call.arg("options.requestedPolicyVersion")
        return shown(access.policy(cloud, find(cloud, call)), version)

    def set_(cloud: Cloud, call: Call) -> Json:
        name = find(cloud, call)
        bindings = call.body.get("policy", call.body).get("bindings", [])
        require(bindings)
        right = f"{collection.permissions}.setIamPolicy"
        known = access.policy(cloud, name)["bindings"]
        require_modified(cloud, call, right, collection.resources(cloud, call), known, bindings)
        return shown(write(cloud, name, call.body), _CONDITIONAL)

    def test(cloud: Cloud, call: Call) -> Json:
        resources = collection.resources(cloud, call)
        service = collection.permissions.partition(".")[0]
        return granted(cloud, call.principal, resources, call.body.get("permissions", []), service)

    collection.method("getIamPolicy")(get)
    collection.method("setIamPolicy")(set_)
    collection.api.method(f"{collection.path}.testIamPermissions")(test)


def require_modified(
    cloud: Cloud,
    call: Call,
    permission: str,
    resources: Sequence[str],
    known: list[Json],
    bindings: list[Json],
) -> None:
    """Refuse a change of a policy that the caller's own grant, with its condition, leaves out.

    Raises ApiError (403).
    """
    modified = sorted({role for role, _, _ in _grants(known) ^ _grants(bindings)})
    attributes = {conditions.MODIFIED_GRANTS: modified}
    access.require(cloud, call.principal, permission, resources, attributes)


def require_version(policy: Json, *bindings: list[Json]) -> None:
    """Refuse a policy of another version than 3 where it has, or had, conditions.

    Source: "Specify a policy version when setting a policy", docs.cloud.google.com/iam/docs/
    allow-policies#specify-version-set.

    Raises:
        ApiError: 400.
    """
    version = int(policy.get("version") or 1)
    conditional = any(condition_of(binding) for each in bindings for binding in each)
    if conditional and version < _CONDITIONAL:
        raise invalid("Conditional role bindings take policy version 3.")


def shown(policy: Json, asked: int | str | None) -> Json:
    """Return a policy as a caller that asks for this version sees it.

    Below version 3 a conditional role gets another name, so that no
    caller writes it back without its condition.
    """
    if not policy["bindings"]:
        return {field: value for field, value in policy.items() if field != "bindings"}
    if int(asked or 1) >= _CONDITIONAL or not any(map(condition_of, policy["bindings"])):
        return policy
    return {**policy, "version": 1, "bindings": list(map(_without_condition, policy["bindings"]))}


def condition_of(binding: Json) -> Condition:
    """Return a binding's condition in a form that can be compared; empty without one."""
    return tuple(sorted((binding.get("condition") or {}).items()))


def _without_condition(binding: Json) -> Json:
    if not condition_of(binding):
        return binding
    mark = hashlib.sha256(repr(condition_of(binding)).encode()).hexdigest()[:20]
    return {"role": f"{binding['role']}_withcond_{mark}", "members": binding["members"]}


# What a change of policy adds or removes, member by member: conditions on grants ask which roles
# are among them.
def _grants(bindings: list[Json]) -> set[tuple[str, str, object]]:
    return {
        (binding.get("role", ""), member, condition_of(binding))
        for binding in bindings
        for member in binding.get("members", [])
    }


def add_account(cloud: Cloud, project: str, email: str, role: str, **fields: str) -> None:
    """Make an account that Google gives to a project, once, with its role.

    An owner who takes the role away keeps it so: enabling the API again grants nothing.
    """
    name = f"projects/{project}/serviceAccounts/{email}"
    if cloud.store.get(access.ACCOUNT, name) is None:
        record = {"name": name, "projectId": project, "email": email, **fields}
        cloud.store.put(access.ACCOUNT, name, record)
        grant(cloud, f"projects/{project}", role, f"serviceAccount:{email}")


def mark_deleted(cloud: Cloud, record: Record) -> None:
    """Name a deleted account in every policy as what it is.

    Its grants must not go to a new account of the same address.
    """
    member = f"serviceAccount:{record['email']}"
    renamed = f"deleted:{member}?uid={record['uniqueId']}"
    for resource, policy in cloud.store.items(POLICY):
        for binding in policy.get("bindings", []):
            if member in binding["members"]:
                names = [renamed if name == member else name for name in binding["members"]]
                binding["members"] = names
                cloud.store.put(POLICY, resource, policy)


def check(
    cloud: Cloud, binding: Json, kinds: Sequence[str] = KINDS, attributes: Sequence[str] = ()
) -> None:
    """Refuse a binding with a role, member or account that does not exist.

    Args:
        binding: with `role` and `members`.
        kinds: what a member may begin with.
        attributes: what its condition may read.

    Raises:
        ApiError: 400.
    """
    role = binding.get("role", "")
    if binding.get("condition"):
        if role in _BASIC:
            raise invalid("Conditions can't be set on primitive roles.")
        conditions.check_binding(binding["condition"].get("expression", ""), attributes)
    custom = cloud.store.get(access.CUSTOM_ROLE, role)
    if role not in access.predefined_roles() and (custom is None or custom.get("deleted")):
        raise invalid(f"Role {role} is not supported for this resource.")
    for member in binding["members"]:
        kind, _, name = member.partition(":")
        if member in PUBLIC:
            continue
        if kind not in kinds or not name:
            raise invalid(
                f"Invalid value for member {member}: it must be allUsers, allAuthenticatedUsers "
                f"or begin with one of {', '.join(f'{kind}:' for kind in kinds)}"
            )
        if kind in ("user", "serviceAccount", "group") and not _EMAIL.fullmatch(name):
            raise invalid(f"Invalid member {member}: {name!r} is not an e-mail address.")
        if kind == "deleted" and not _DELETED.fullmatch(name):
            raise invalid(
                f"Invalid member {member}: deleted members have the form deleted:KIND:NAME?uid=N."
            )
        # The accounts in whose name Google's services act are Google's own.
        own = name.endswith(access.OWN_DOMAIN) and not access.is_service_agent(name)
        if kind == "serviceAccount" and own and access.find_account(cloud, name) is None:
            raise invalid(f"Service account {name} does not exist.")


# One binding a role and condition is kept, with sorted members: two that say the same become one.
def _merged(bindings: list[Json]) -> list[Json]:
    merged: dict[tuple[str, Condition], set[str]] = {}
    for binding in bindings:
        about = binding["role"], condition_of(binding)
        merged.setdefault(about, set()).update(binding["members"])
    return [
        {"role": role, "members": sorted(members)}
        | ({"condition": dict(condition)} if condition else {})
        for (role, condition), members in sorted(merged.items())
    ]


def etag(cloud: Cloud) -> str:
    """Return the etag of what is written now.

    Two writes never have the same one, not even of equal policies.
    """
    # In the form of Google's: a byte 7, then a time.
    return base64.b64encode(b"\x07" + cloud.operations.number().to_bytes(7, "big")).decode()
