"""The IAM API: service accounts, their policies and tokens, predefined and custom roles.

Accounts have no keys, and a deleted one is gone. A deleted role can be brought back for 7 days, as
Google's provider does when it creates one of the same ID. Then it is gone, and its ID is free after
30 more (docs.cloud.google.com/iam/docs/creating-custom-roles).
"""

import base64
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from localcloud.core import Api, ApiError, Cloud, Collection, access, invalid, projects, rfc3339
from localcloud.core.body import plain
from localcloud.core.call import Call, Json, Principal, camel, cut, page
from localcloud.core.errors import failed_precondition
from localcloud.core.store import Record, public
from localcloud.services import iam_policy

API = Api("iam", ("v1",))
CREDENTIALS_API = Api("iamcredentials", ("v1",))


_ACCOUNT_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
# The discovery document's; the words of the refusal are the local cloud's.
_LONGEST_NAME = 100
_LONGEST_TOKEN = 3600.0
_SECONDS = re.compile(r"\d+(\.\d+)?s")
_ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")
_PROJECTS = "//cloudresourcemanager.googleapis.com/projects/"
_DAY = 24 * 3600.0
_RESTORABLE, _RESERVED = 7 * _DAY, 37 * _DAY
_ROLE_FIELDS = ("title", "description", "includedPermissions", "stage")


def account_key(cloud: Cloud, call: Call) -> str:
    """Return the account's full name; its project may be `-`."""
    project = projects.identifier(cloud, call.params["projectsId"])
    account = call.params["serviceAccountsId"]
    found = access.find_account(cloud, account) if project == "-" else None
    return found[0] if found else f"projects/{project}/serviceAccounts/{account}"


def account_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the account's own policy and its project's."""
    key = account_key(cloud, call)
    return (key, "/".join(key.split("/")[:2]))


_ACCOUNTS = Collection(API, "projects.serviceAccounts", "iam.serviceAccounts", account_resources)


def load_account(cloud: Cloud, call: Call) -> tuple[str, Record]:
    """Return the account that the path names; 404 when there is none."""
    key = account_key(cloud, call)
    record = cloud.store.get(access.ACCOUNT, key)
    if record is not None and access.is_account_visible(cloud, record):
        return key, record
    if record is None:
        raise ApiError(404, "Unknown service account")
    raise ApiError(404, f"Service account {key} does not exist.")


def _account_view(record: Record) -> Json:
    project = record["name"].split("/")[1]
    number = record.get("uniqueId") or projects.number(record["email"])
    own = {"projectId": project, "uniqueId": number, "oauth2ClientId": number}
    return own | public(record)


def _account_etag(cloud: Cloud) -> str:
    return base64.b64encode(str(cloud.operations.number()).encode()).decode()


@API.method("projects.serviceAccounts.create", permission="iam.serviceAccounts.create")
def create_account(cloud: Cloud, call: Call) -> Json:
    """Create a service account.

    It is there at once, but other APIs see it only later (`account.visible`): "create, then grant"
    in one go fails on Google too, and the provider waits for it.
    """
    project = projects.identifier(cloud, call.project)
    account_id = call.body.get("accountId", "")
    if not _ACCOUNT_ID.fullmatch(account_id):
        raise invalid(
            f'Invalid service account id "{account_id}": it must have 6 to 30 lower-case letters, '
            "digits and hyphens, and begin with a letter."
        )
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    name = f"projects/{project}/serviceAccounts/{email}"
    sent = call.body.get("serviceAccount", {})
    if len(sent.get("displayName", "").encode()) > _LONGEST_NAME:
        raise invalid(f"A display name has at most {_LONGEST_NAME} bytes.")
    record = {
        "name": name,
        "projectId": project,
        "email": email,
        "uniqueId": str(100_000_000_000_000_000_000 + cloud.operations.number()),
        "etag": _account_etag(cloud),
        "_created": cloud.clock.now(),
        "_visible": cloud.clock.now() + cloud.seconds("account.visible"),
        **{key: sent[key] for key in ("displayName", "description") if sent.get(key)},
    }
    taken = f"Service account {account_id} already exists within project projects/{project}."
    cloud.store.add(access.ACCOUNT, name, record, ApiError(409, taken))
    return _account_view(record)


@_ACCOUNTS.method("get")
def get_account(cloud: Cloud, call: Call) -> Json:
    """Return one account, by its e-mail address."""
    return _account_view(load_account(cloud, call)[1])


@API.method("projects.serviceAccounts.list", permission="iam.serviceAccounts.list")
def list_accounts(cloud: Cloud, call: Call) -> Json:
    """Return the project's accounts."""
    project = projects.identifier(cloud, call.project)
    found = cloud.store.items(access.ACCOUNT, f"projects/{project}/")
    # Google's own service agents are not listed.
    own = [record for _, record in found if not access.is_service_agent(record["email"])]
    return page(call, "accounts", list(map(_account_view, own)))


@_ACCOUNTS.method("patch", verb="update")
def patch_account(cloud: Cloud, call: Call) -> Json:
    """Change display name or description; the answer has only what the mask names."""
    with cloud.store.locked():
        key, record = load_account(cloud, call)
        sent = plain(call.body.get("serviceAccount", {}))
        mask = call.body.get("updateMask", "").split(",")
        for field in mask:
            name = camel(field)
            if name not in ("displayName", "description"):
                raise invalid(f"Invalid updateMask {field}: displayName and description only")
            record[name] = sent.get(name, "")
        record["etag"] = _account_etag(cloud)
        cloud.store.put(access.ACCOUNT, key, record)
    return {field: record[field] for field in ("name", *map(camel, mask))}


@_ACCOUNTS.method("delete")
def delete_account(cloud: Cloud, call: Call) -> Json:
    """Delete the account; policies that name it show it as deleted."""
    with cloud.store.locked():
        key, record = load_account(cloud, call)
        cloud.store.delete(access.ACCOUNT, key)
        cloud.store.delete("policy", key)
        iam_policy.mark_deleted(cloud, _account_view(record))
    return {}


@_ACCOUNTS.method("disable")
@_ACCOUNTS.method("enable")
def switch_account(cloud: Cloud, call: Call) -> Json:
    """Disable the account, whose tokens stop working, or enable it again.

    "Existing access tokens for the service account are rejected … After you re-enable the service
    account, its existing access tokens will be accepted" (the discovery document).
    """
    with cloud.store.locked():
        key, record = load_account(cloud, call)
        record.pop("disabled", None)
        if call.method.name.endswith(".disable"):
            record["disabled"] = True
        cloud.store.put(access.ACCOUNT, key, record)
    return {}


iam_policy.serve(_ACCOUNTS, lambda cloud, call: load_account(cloud, call)[0])


@CREDENTIALS_API.method(
    "projects.serviceAccounts.generateAccessToken",
    permission="iam.serviceAccounts.getAccessToken",
    resources=account_resources,
)
def generate_access_token(cloud: Cloud, call: Call) -> Json:
    """Return an access token with the scopes asked for, for at most an hour.

    Longer ones take an organization policy
    (constraints/iam.allowServiceAccountCredentialLifetimeExtension), and there is no organization
    here.
    """
    _, record = load_account(cloud, call)
    if record.get("disabled"):
        raise ApiError(400, f"Service account {record['email']} is disabled.")
    scopes = call.body.get("scope", [])
    if not scopes:
        raise invalid("scope must name at least one OAuth scope")
    wanted = call.body.get("lifetime", "3600s")
    lifetime = float(wanted[:-1]) if _SECONDS.fullmatch(wanted) else 0.0
    if not 0 < lifetime <= _LONGEST_TOKEN:
        message = f"lifetime must be more than 0s and at most {_LONGEST_TOKEN:.0f}s, not {wanted!r}"
        raise invalid(message)
    principal = Principal(f"serviceAccount:{record['email']}", frozenset(scopes))
    return {
        "accessToken": cloud.token(principal, lifetime=lifetime),
        # In whole seconds: Google's own library for Python reads no fraction here.
        "expireTime": rfc3339(int(cloud.clock.now() + lifetime)).replace(".000", ""),
    }


# Roles are patterns over the permissions that the local cloud knows; Google lists each by its name.
def _predefined(name: str) -> Json:
    patterns = access.predefined_roles()[name]
    included = sorted(
        permission
        for permission in access.known_permissions()
        if any(fnmatchcase(permission, pattern) for pattern in patterns)
    )
    role = {"name": name, "title": name.removeprefix("roles/"), "stage": "GA"}
    return role | {"includedPermissions": included}


def _check_permissions(role: Json) -> None:
    # Google's words: github.com/hashicorp/terraform-provider-google/issues/14033.
    wrong = [name for name in role.get("includedPermissions", []) if not access.is_testable(name)]
    if wrong:
        raise invalid(f"Permission {', '.join(sorted(wrong))} is not valid.")


@API.method("roles.get")
def get_predefined(cloud: Cloud, call: Call) -> Json:
    """Return one of Google's roles.

    The local cloud knows those that a stack or its users need, with the permissions that it checks.
    """
    name = f"roles/{call.params['rolesId']}"
    if name not in access.predefined_roles():
        raise ApiError(404, f"The role named {name} was not found.")
    return _predefined(name)


@API.method("roles.list")
def list_predefined(cloud: Cloud, call: Call) -> Json:
    """List Google's roles, as far as the local cloud knows them."""
    return _role_page(call, [_predefined(name) for name in sorted(access.predefined_roles())])


def _role_page(call: Call, roles: list[Json]) -> Json:
    """Return a page of roles; their permissions are left out unless the caller asks for them."""
    if call.arg("view") != "FULL":
        roles = [{k: v for k, v in role.items() if k != "includedPermissions"} for role in roles]
    return page(call, "roles", roles, size=300)


@API.method("permissions.queryTestablePermissions")
def query_testable_permissions(cloud: Cloud, call: Call) -> Json:
    """List the permissions that a resource, here a project, can be tested for.

    The command that makes a role from a file asks it. It pages by the body, unlike other lists.
    """
    resource = call.body.get("fullResourceName", "")
    project = resource.removeprefix(_PROJECTS)
    if project == resource or projects.find(cloud, project) is None:
        raise invalid(f"Invalid resource name '{resource}': the local cloud has {_PROJECTS}ID.")
    names = filter(access.is_testable, sorted(access.known_permissions()))
    items = [{"name": name, "stage": "GA"} for name in names]
    size = min(call.body.get("pageSize") or 100, 1000)
    return cut("permissions", items, call.body.get("pageToken", ""), size)


def _role_key(call: Call) -> str:
    return f"projects/{call.project}/roles/{call.params['rolesId']}"


def _load_role(cloud: Cloud, call: Call) -> Record:
    missing = ApiError(404, f"The role named {_role_key(call)} was not found.")
    record = cloud.store.load(access.CUSTOM_ROLE, _role_key(call), missing)
    if _deleted_for(cloud, record) >= _RESTORABLE:
        raise missing
    return record


def _deleted_for(cloud: Cloud, record: Record) -> float:
    """Return the seconds since a role was deleted, 0 for one that is not.

    Nothing removes its record: it tells how long the ID stays taken.
    """
    now = cloud.clock.now()
    since: float = record.get("_deleted", now)
    return now - since


def _require_free(cloud: Cloud, name: str) -> None:
    """Raise what Google answers when a role has this name, or had it not long ago."""
    record = cloud.store.get(access.CUSTOM_ROLE, name)
    if record is None:
        return
    short = name.rpartition("/")[2]
    if not record.get("deleted"):
        project = name.partition("/roles/")[0]
        raise ApiError(409, f"A role named {short} in {project} already exists.")
    age = _deleted_for(cloud, record)
    if age < _RESTORABLE:
        raise failed_precondition(
            f"You can't create a role with role_id ({short}) where there is an existing role with "
            "that role_id in a deleted state."
        )
    if age < _RESERVED:
        message = f"You can't create a role_id ({short}) which has been marked for deletion."
        raise failed_precondition(message)


@API.method("projects.roles.create", permission="iam.roles.create")
def create_role(cloud: Cloud, call: Call) -> Json:
    """Create a role of the project's own."""
    role_id = call.body.get("roleId", "")
    if not _ROLE_ID.fullmatch(role_id):
        raise invalid(f'Invalid role id "{role_id}": 3 to 64 letters, digits, _ and .')
    name = f"projects/{call.project}/roles/{role_id}"
    sent = call.body.get("role", {})
    _check_permissions(sent)
    record = {"name": name, "etag": f"Bw{cloud.operations.number()}="}
    record |= {field: sent[field] for field in _ROLE_FIELDS if field in sent}
    with cloud.store.locked():
        _require_free(cloud, name)
        cloud.store.put(access.CUSTOM_ROLE, name, record)
    return record


@API.method("projects.roles.get", permission="iam.roles.get")
def get_role(cloud: Cloud, call: Call) -> Json:
    """Return one of the project's roles."""
    return public(_load_role(cloud, call))


@API.method("projects.roles.list", permission="iam.roles.list")
def list_roles(cloud: Cloud, call: Call) -> Json:
    """Return the project's roles."""
    found = cloud.store.items(access.CUSTOM_ROLE, f"projects/{call.project}/")
    return _role_page(call, [public(role) for _, role in found if not role.get("deleted")])


@API.method("projects.roles.patch", permission="iam.roles.update")
def patch_role(cloud: Cloud, call: Call) -> Json:
    """Change a role.

    The etag guards against the loss of another caller's change, as in policies.
    """
    mask = call.mask() or list(_ROLE_FIELDS)
    _check_permissions(call.body)
    record = _load_role(cloud, call)
    if record.get("deleted"):
        raise failed_precondition(f"The role {_role_key(call)} is deleted: undelete it first.")
    if call.body.get("etag", record["etag"]) != record["etag"]:
        raise ApiError(409, "There were concurrent changes of the role.", status="ABORTED")
    record |= {field: call.body[field] for field in mask if field in call.body}
    return _put_role(cloud, call, record)


@API.method("projects.roles.delete", permission="iam.roles.delete")
def delete_role(cloud: Cloud, call: Call) -> Json:
    """Delete a role; it can be brought back, and its ID stays taken.

    "Existing bindings to the custom role are not changed, but they have no effect" (the discovery
    document).
    """
    gone = {"deleted": True, "_deleted": cloud.clock.now()}
    return _put_role(cloud, call, _load_role(cloud, call) | gone)


@API.method("projects.roles.undelete", permission="iam.roles.undelete")
def undelete_role(cloud: Cloud, call: Call) -> Json:
    """Bring a deleted role back."""
    record = _load_role(cloud, call)
    kept = {field: record[field] for field in record if field not in ("deleted", "_deleted")}
    return _put_role(cloud, call, kept)


def _put_role(cloud: Cloud, call: Call, record: Record) -> Json:
    record["etag"] = f"Bw{cloud.operations.number()}="
    cloud.store.put(access.CUSTOM_ROLE, _role_key(call), record)
    return public(record)
