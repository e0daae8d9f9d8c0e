"""The Secret Manager API: secrets, their versions and policies. Versions are never destroyed."""

import base64
import binascii
import re
from collections.abc import Sequence

import google_crc32c

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record, public
from localcloud.services import iam_policy, kind

API = Api("secretmanager", ("v1",))
SECRET, VERSION = "secret", "secret-version"
"""The store's kinds, by `projects/P/secrets/S` and `projects/P/secrets/S/versions/N`."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,255}", re.ASCII)
_FIELDS = ("replication", "labels", "annotations")
# "Must be no larger than 64KiB" (the discovery document, `SecretPayload.data`).
_MOST_BYTES = 64 << 10


def _resources(cloud: Cloud, call: Call) -> Sequence[str]:
    return (_KIND.name(call), kind.project_name(call))


_SECRETS = Collection(API, "projects.secrets", "secretmanager.secrets", _resources)
_ADD = "secretmanager.versions.add"
_VERSIONS = Collection(API, "projects.secrets.versions", "secretmanager.versions", _resources)


def _remove_versions(cloud: Cloud, call: Call, name: str, record: Record) -> None:
    for key in cloud.store.keys(VERSION, f"{name}/"):
        cloud.store.delete(VERSION, key)


_KIND = kind.Kind(
    collection=_SECRETS,
    store=SECRET,
    items="secrets",
    # Google names secrets by the project's number, whatever the caller wrote.
    missing=lambda name: f"Secret [{projects.numbered(name)}] not found.",
    remove=_remove_versions,
)
kind.serve(_KIND)
iam_policy.serve(_SECRETS, _KIND.existing)


@API.method("projects.secrets.create", permission="secretmanager.secrets.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a secret without a version.

    A value comes by `addVersion`, which takes another permission.
    """
    short = call.arg("secretId")
    name = f"projects/{call.project}/secrets/{short}"
    if not _ID.fullmatch(short):
        raise invalid(f"The provided Secret ID [{short}] does not match [a-zA-Z_0-9]+.")
    sent = kind.only(call, "secrets", _FIELDS)
    # Where a secret is cannot be changed later, so Google has no default for it.
    if not sent.get("replication"):
        raise invalid("Secret.replication is required")
    shown = _identity(cloud, name)
    record = {**shown, "_key": name, **sent}
    taken = ApiError(409, f"Secret [{shown['name']}] already exists.")
    cloud.store.add(SECRET, name, record, taken)
    return public(record)


# The permission is one of versions, the method one of secrets.
@API.method(f"{_SECRETS.path}.addVersion", permission=_ADD, resources=_resources)
def add_version(cloud: Cloud, call: Call) -> Json:
    """Add a version, which is `latest` from then on.

    The checksum guards the value on its way: a wrong one is refused, not stored.
    """
    payload = call.body.get("payload", {})
    text = payload.get("data", "")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise invalid("payload.data is not base64.") from None
    checksum = payload.get("dataCrc32c")
    if checksum is not None and int(checksum) != google_crc32c.value(data):
        raise invalid("payload.dataCrc32c is not the CRC32C of payload.data.")
    if not 0 < len(data) <= _MOST_BYTES:
        raise invalid("The SecretPayload must have between 1 and 65536 bytes.")
    with cloud.store.locked():
        secret = _KIND.load(cloud, call)
        # Versions are numbered from 1 and never destroyed here, so their count is the last one.
        name = f"{secret['_key']}/versions/{len(_versions(cloud, call)) + 1}"
        replicas = _replication_status(secret)
        shown = {**_identity(cloud, name), "state": "ENABLED", "replicationStatus": replicas}
        if checksum is not None:
            shown["clientSpecifiedPayloadChecksum"] = True
        cloud.store.put(VERSION, name, {**shown, "_data": text})
    return shown


@_VERSIONS.method("access")
def _access(cloud: Cloud, call: Call) -> Json:
    record = _version(cloud, call)
    checksum = google_crc32c.value(base64.b64decode(record["_data"]))
    payload = {"data": record["_data"], "dataCrc32c": str(checksum)}
    return {"name": record["name"], "payload": payload}


@_VERSIONS.method("get")
def _get_version(cloud: Cloud, call: Call) -> Json:
    return public(_version(cloud, call))


def _identity(cloud: Cloud, name: str) -> Json:
    made = {"name": projects.numbered(name), "createTime": rfc3339(cloud.clock.now())}
    return made | {"etag": f'"{cloud.operations.number():x}"'}


def _replication_status(secret: Record) -> Json:
    """Return where a version is: a copy in each place of the secret's replication."""
    managed = secret["replication"].get("userManaged")
    if managed is None:
        return {"automatic": {}}
    places = [{"location": replica["location"]} for replica in managed.get("replicas", [])]
    return {"userManaged": {"replicas": places}}


def _versions(cloud: Cloud, call: Call) -> list[str]:
    return cloud.store.keys(VERSION, f"{_KIND.name(call)}/")


def _version(cloud: Cloud, call: Call) -> Record:
    _KIND.load(cloud, call)
    asked = call.params["versionsId"]
    number = str(len(_versions(cloud, call))) if asked == "latest" else asked
    name = f"{_KIND.name(call)}/versions/{number}"
    message = f"Secret Version [{projects.numbered(name)}] not found or has no versions."
    return cloud.store.load(VERSION, name, ApiError(404, message))
