"""The Cloud Storage API: its registration, and what its calls check before they act.

Permissions, access control lists, preconditions and keys; at the end the batch endpoint.
"""

import io
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qs, urlsplit

from localcloud.core import Api, ApiError, Cloud, Collection, access, invalid, projects
from localcloud.core.call import ANONYMOUS, Call, Json, Principal, Request, Response
from localcloud.core.registry import Dispatcher, Resources
from localcloud.services import kms
from localcloud.services.storage.records import Bucket, Version, require_bucket

# Older clients, gsutil among them, call it at www.googleapis.com.
HOSTS = ("storage.googleapis.com", "www.googleapis.com")
API = Api("storage", ("v1",), hosts=HOSTS, anonymous=True)


def resources_of(cloud: Cloud, bucket: str, principal: Principal, name: str = "") -> Sequence[str]:
    """Return the resources whose policies count for a bucket or an object in it; 404 without it.

    Objects have no policies of their own here (…/storage/docs/uniform-bucket-level-access), but
    conditions of the bucket's know them by name.
    """
    found = require_bucket(cloud, bucket)
    if principal is ANONYMOUS and found.public_access_prevented:
        # Public access prevention outweighs bindings that were there before it
        # (cloud.google.com/storage/docs/public-access-prevention).
        return ()
    accessed = (f"buckets/{bucket}/objects/{name}",) if name else ()
    return (*accessed, f"buckets/{bucket}", f"projects/{found.project}")


def require(
    cloud: Cloud, principal: Principal, bucket: str, permission: str, name: str = ""
) -> None:
    """Raise Google's 403 when a caller lacks a permission on a bucket, or an object in it."""
    access.require(cloud, principal, permission, resources_of(cloud, bucket, principal, name))


def bucket_in(parameter: str, name: str = "") -> Resources:
    """Return the policies that count for what path parameters name: a bucket, maybe an object."""

    def resources(cloud: Cloud, call: Call) -> Sequence[str]:
        bucket = call.params[parameter]
        return resources_of(cloud, bucket, call.principal, call.params.get(name, ""))

    return resources


BUCKETS = Collection(API, "buckets", "storage.buckets", bucket_in("bucket"))
OBJECTS = Collection(API, "objects", "storage.objects", bucket_in("bucket", "object"))
DESTINATIONS = Collection(
    API, "objects", "storage.objects", bucket_in("destinationBucket", "destinationObject")
)
"""The methods of objects that are allowed by the bucket to which they write."""


def project_in_query(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the policy of the project that the query names, for calls on no bucket yet."""
    return (f"projects/{projects.identifier(cloud, call.arg('project'))}",)


# Access control lists: the local cloud has none, policies alone decide. Google refuses these, too,
# in buckets with uniform access (cloud.google.com/storage/docs/uniform-bucket-level-access).
_ACL_PARAMETERS = ("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl")


def refuse_unserved(call: Call, *harmless: str) -> None:
    """Refuse a call that asks for an access control list or chooses an object's key (501).

    Lists that are `harmless` grant nothing beyond the bucket's policy.
    """
    for name in _ACL_PARAMETERS:
        if call.arg(name) not in ("", *harmless):
            raise ApiError(
                501,
                f"the local cloud has no access control lists ({name}={call.arg(name)}); grant a "
                "role in the bucket's policy instead",
            )
    for name in ("kmsKeyName", "destinationKmsKeyName"):
        if call.arg(name):
            raise ApiError(501, f"the local cloud does not implement {name}: set the bucket's key")


def refuse_soft_deleted(call: Call) -> None:
    """Refuse a call about what was soft-deleted (501): it is counted, and not kept."""
    if call.flag("softDeleted"):
        raise ApiError(501, "the local cloud neither shows nor restores what was soft-deleted")


Subject = Version | Bucket | None


@dataclass(frozen=True)
class Conditions:
    """The `if…Match` parameters of a call (cloud.google.com/storage/docs/request-preconditions).

    A generation of 0 means that nothing is there: `ifGenerationMatch=0` creates and never
    overwrites, on which leases build.
    """

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @classmethod
    def of(cls, call: Call, prefix: str = "if") -> "Conditions":
        """Return the conditions in a call's query; `prefix` is `ifSource` for a copy's source."""
        kinds, ends = ("Generation", "Metageneration"), ("Match", "NotMatch")
        return cls(*(call.number(f"{prefix}{kind}{end}") for kind in kinds for end in ends))

    def check(self, subject: Subject) -> None:
        """Refuse a call whose conditions don't hold (412)."""
        if self.check_read(subject):
            raise _failed()

    def check_read(self, subject: Subject) -> bool:
        """Like `check`, but a `NotMatch` that fails makes the answer True: 304, not modified."""
        same, other = self.generation_match, self.generation_not_match
        meta_same, meta_other = self.metageneration_match, self.metageneration_not_match
        generation = subject.generation if subject else 0
        metageneration = subject.metageneration if subject else None
        if same not in (None, generation) or meta_same not in (None, metageneration):
            raise _failed()
        return generation == other or (subject is not None and metageneration == meta_other)


def _failed() -> ApiError:
    """Return a 412 in Google's words."""
    return ApiError(412, "At least one of the pre-conditions you specified did not hold.")


# Customer-managed keys (cloud.google.com/storage/docs/encryption/customer-managed-keys). The bytes
# on disk are not encrypted: what counts is who may use a key, and that an object whose key is gone
# can't be read.
_KEY_NAME = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")


def storage_agent(project_number: str) -> str:
    """Return the account in whose name Cloud Storage acts, and uses keys, for a project."""
    return f"service-{project_number}@gs-project-accounts.iam.gserviceaccount.com"


def _default_key(settings: Json) -> str:
    """Return the key of new objects in a bucket with these settings; empty for Google's own."""
    return str((settings.get("encryption") or {}).get("defaultKmsKeyName") or "")


def check_default_key(cloud: Cloud, bucket: Bucket, before: Json) -> None:
    """Refuse a bucket's new default key that Cloud Storage could not use (400 or 403).

    `before` are the bucket's settings so far, empty for a new one. A key that was good when it was
    set may stay, as on Google, though it has lost its grant since.
    """
    key = _default_key(bucket.settings)
    if not key or key == _default_key(before):
        return
    named = _KEY_NAME.fullmatch(key)
    if named is None:
        raise invalid(f"Invalid Cloud KMS key name: '{key}'.")
    if named.group(1).upper() != bucket.location:
        raise invalid(
            f"The Cloud KMS key location '{named.group(1)}' is not compatible with the bucket's "
            f"location '{bucket.location}'."
        )
    _require_use(cloud, bucket, key, kms.ENCRYPT)


def encrypting_version(cloud: Cloud, bucket: Bucket) -> str | None:
    """Return the key version that encrypts a new object, or None for Google's own keys.

    It is 403 if Cloud Storage's account may not use the key, 400 if the key is disabled.
    """
    key = _default_key(bucket.settings)
    if not key:
        return None
    _require_use(cloud, bucket, key, kms.ENCRYPT)
    return str(kms.enabled(cloud, key)["name"])


def check_readable(cloud: Cloud, bucket: Bucket, version: Version) -> None:
    """Refuse to read an object whose key can't be used (403, or 400 for a disabled key)."""
    if version.kms_version is None:
        return
    key = version.kms_version.partition("/cryptoKeyVersions/")[0]
    _require_use(cloud, bucket, key, kms.DECRYPT)
    kms.enabled(cloud, key)


def _require_use(cloud: Cloud, bucket: Bucket, key: str, permission: str) -> None:
    member = f"serviceAccount:{storage_agent(bucket.project_number)}"
    if cloud.store.get(kms.KEY, key) is None or not kms.may_use(cloud, member, key, permission):
        raise ApiError(
            403,
            "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service "
            f"account has been authorized to use this key ({member.partition(':')[2]} on {key}).",
        )


# The batch endpoint: up to 100 calls in one request (cloud.google.com/storage/docs/batch). gcsfs
# deletes every object with it, and Google's Python client has it as `client.batch()`.
_MOST_CALLS = 100


@API.raw("POST", r"/batch/storage/v1/?", like="batch", hosts=HOSTS, upload=True)
def batch(cloud: Cloud, call: Call) -> Response:
    """Answer every call of the batch in order."""
    head = f"Content-Type: {call.request.headers.get('Content-Type', '')}\r\n\r\n".encode()
    message = BytesParser().parsebytes(head + call.request.read())
    if message.get_content_type() != "multipart/mixed" or not message.is_multipart():
        raise invalid("A batch is a multipart/mixed body of application/http parts.")
    parts = cast("list[Message]", message.get_payload())
    if len(parts) > _MOST_CALLS:
        raise invalid(f"The batch has {len(parts)} calls; at most {_MOST_CALLS} are allowed.")
    dispatcher = Dispatcher(cloud, (API,))
    boundary = f"batch_{uuid.uuid4().hex}"
    body = b""
    for part in parts:
        answer = dispatcher.answer(_request_in(call.request, part))
        content = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        headers = answer.headers | {"Content-Length": str(len(content))}
        lines = [
            f"--{boundary}\r\nContent-Type: application/http",
            # Clients tell answers apart by this, not by their order.
            f"Content-ID: <response-{part.get('Content-ID', '').strip('<>')}>\r\n",
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        body += "\r\n".join(lines).encode() + b"\r\n\r\n" + content + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return Response(200, body, {"Content-Type": f"multipart/mixed; boundary={boundary}"})


def _request_in(outer: Request, part: Message) -> Request:
    """Return the call in a part; the batch's own authorization holds where the part has none."""
    line, _, rest = cast(bytes, part.get_payload(decode=True) or b"").lstrip().partition(b"\n")
    words = line.decode(errors="replace").split()
    if len(words) < 2:
        raise invalid(f"'{' '.join(words)}' is not an HTTP request line.")
    inner = BytesParser().parsebytes(rest)
    content = cast(bytes, inner.get_payload(decode=True) or b"")
    target = urlsplit(words[1])
    headers = {name.title(): str(value) for name, value in inner.items()}
    if not headers.get("Authorization") and outer.headers.get("Authorization"):
        headers["Authorization"] = outer.headers["Authorization"]
    query = parse_qs(target.query, keep_blank_values=True)
    stream = io.BytesIO(content)
    return Request(words[0], outer.host, target.path, query, headers, stream, len(content))
