"""Service accounts. They have no keys: a caller who asks for one is refused."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

from localcloud.core import accounts, projects
from localcloud.core.accounts import ACCOUNT
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.fields import camel
from localcloud.core.reading import plain
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services import iam_policy
from localcloud.services.iam.api import API
from localcloud.services.paging import page

DELETED = "deleted-service-account"
_ID = re.compile(r"[a-z]([-a-z0-9]{4,28}[a-z0-9])")
# The discovery document's; the words of the refusal are the local cloud's.
_LONGEST_NAME = 100


def key_of(cloud: Cloud, call: Call) -> str:
    """Return the account's full name; its project may be `-`, and its id its number."""
    project = projects.identifier(cloud, call.params["projectsId"])
    account = call.params["serviceAccountsId"]
    if "@" in account:
        found = accounts.find(cloud, account)
        known = [found[0]] if found else []
    else:
        records = [*cloud.store.items(ACCOUNT), *cloud.store.items(DELETED)]
        known = [key for key, record in records if record.get("uniqueId") == account]
    here = (key for key in known if project in ("-", key.split("/")[1]))
    return next(here, f"projects/{project}/serviceAccounts/{account}")


def account_resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the account's own policy and its project's."""
    key = key_of(cloud, call)
    return (key, "/".join(key.split("/")[:2]))


_ACCOUNTS = Collection(API, "projects.serviceAccounts", "iam.serviceAccounts", account_resources)
_KEYS = Collection(
    API, "projects.serviceAccounts.keys", "iam.serviceAccountKeys", account_resources
)


def find(cloud: Cloud, call: Call) -> tuple[str, Record]:
    """Return the account that the path names.

    Raises:
        ApiError: 404 when there is none.
    """
    key = key_of(cloud, call)
    record = cloud.store.get(ACCOUNT, key)
    if record is not None and accounts.is_visible(cloud, record):
        return key, record
    if record is None and cloud.store.get(DELETED, key) is None:
        raise ApiError(404, "Unknown service account")
    raise ApiError(404, f"Service account {key} does not exist.")


def _view(record: Record) -> Json:
    project = record["name"].split("/")[1]
    number = record.get("uniqueId") or projects.number(record["email"])
    shown = {name: value for name, value in record.items() if not name.startswith("_")}
    return {"projectId": project, "uniqueId": number, "oauth2ClientId": number, **shown}


def _etag(cloud: Cloud) -> str:
    return base64.b64encode(str(cloud.operations.number()).encode()).decode()


@API.method("projects.serviceAccounts.create", permission="iam.serviceAccounts.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a account."""
    project = projects.identifier(cloud, call.project)
    account_id = call.body.get("accountId", "")
    if not _ID.fullmatch(account_id):
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
        "etag": _etag(cloud),
        "_created": cloud.clock.now(),
        "_visible": cloud.clock.now() + cloud.seconds("account.visible"),
        **{key: sent[key] for key in ("displayName", "description") if sent.get(key)},
    }
    said = f"Service account {account_id} already exists within project projects/{project}."
    cloud.store.add(ACCOUNT, name, record, ApiError(409, said))
    return _view(record)


@_ACCOUNTS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one account, by e-mail address or number."""
    return _view(find(cloud, call)[1])


@API.method("projects.serviceAccounts.list", permission="iam.serviceAccounts.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the project's accounts."""
    project = projects.identifier(cloud, call.project)
    found = cloud.store.items(ACCOUNT, f"projects/{project}/")
    # Google's own service agents are not listed.
    shown = [_view(record) for _, record in found if not accounts.is_agent(record["email"])]
    return page(call, "accounts", shown)


@_ACCOUNTS.method("patch", "update", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change display name or description."""
    with cloud.store.locked():
        key, record = find(cloud, call)
        if call.method.verb == "PATCH":
            sent = plain(call.body.get("serviceAccount", {}))
            mask = call.body.get("updateMask", "").split(",")
        else:
            sent, mask = plain(call.body), ["displayName", "description"]
        for field in mask:
            name = camel(field)
            if name not in ("displayName", "description"):
                raise invalid(f"Invalid updateMask {field}: displayName and description only")
            record[name] = sent.get(name, "")
        record["etag"] = _etag(cloud)
        cloud.store.put(ACCOUNT, key, record)
    if call.method.verb == "PATCH":
        return {field: record[field] for field in ("name", *map(camel, mask))}
    return _view(record)


@_ACCOUNTS.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete the account; policies that name it show it as deleted."""
    with cloud.store.locked():
        key, record = find(cloud, call)
        cloud.store.delete(ACCOUNT, key)
        cloud.store.put(DELETED, key, record)
        cloud.store.delete("policy", key)
        member = f"serviceAccount:{record['email']}"
        iam_policy.forget_member(cloud, member, _view(record)["uniqueId"])
    return {}


@_ACCOUNTS.method("undelete")
def undelete(cloud: Cloud, call: Call) -> Json:
    """Bring a deleted account back."""
    with cloud.store.locked():
        key = key_of(cloud, call)
        record = cloud.store.get(DELETED, key)
        if record is None or cloud.store.get(ACCOUNT, key) is not None:
            raise ApiError(404, f"No deleted service account {key.rpartition('/')[2]}")
        cloud.store.delete(DELETED, key)
        cloud.store.put(ACCOUNT, key, record)
        iam_policy.recall_member(cloud, f"serviceAccount:{record['email']}", record["uniqueId"])
    return {"restoredAccount": _view(record)}


@_ACCOUNTS.method("disable")
@_ACCOUNTS.method("enable")
def switch(cloud: Cloud, call: Call) -> Json:
    """Disable the account, whose tokens stop working, or enable it again."""
    with cloud.store.locked():
        key, record = find(cloud, call)
        record.pop("disabled", None)
        if call.method.name.endswith(".disable"):
            record["disabled"] = True
        cloud.store.put(ACCOUNT, key, record)
    return {}


iam_policy.serve(_ACCOUNTS, lambda cloud, call: find(cloud, call)[0])


@_KEYS.method("create", "upload")
def refuse_key(cloud: Cloud, call: Call) -> Json:
    """Refuse a key, as an organization policy against keys does."""
    raise ApiError(
        400,
        "Key creation is not allowed on this service account.",
        status="FAILED_PRECONDITION",
        reason="failedPrecondition",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.PreconditionFailure",
                "violations": [
                    {
                        "type": "constraints/iam.disableServiceAccountKeyCreation",
                        "subject": key_of(cloud, call),
                        "description": "The local cloud signs no keys: use the metadata server or "
                        "generateAccessToken.",
                    }
                ],
            }
        ],
    )


@_KEYS.method("list")
def list_keys(cloud: Cloud, call: Call) -> Json:
    """Return the key pair that Google manages; there are no others."""
    key, record = find(cloud, call)
    if "USER_MANAGED" in call.request.query.get("keyTypes", []):
        return {}
    number = hashlib.sha256(key.encode()).hexdigest()[:40]
    managed = {
        "name": f"{key}/keys/{number}",
        "keyType": "SYSTEM_MANAGED",
        "keyAlgorithm": "KEY_ALG_RSA_2048",
        "keyOrigin": "GOOGLE_PROVIDED",
        "validAfterTime": rfc3339(record.get("_created", 0.0)),
        "validBeforeTime": "9999-12-31T23:59:59Z",
    }
    return {"keys": [managed]}
