"""Customers' own keys: a bucket's default key, and the version that an object is encrypted with.

The bytes lie on disk as they are: what counts here is who may use a key, and that nobody reads an
object whose key is gone.
"""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services import kms
from localcloud.services.kms import KEY
from localcloud.services.storage.records import Bucket, Version

_NAME = re.compile(r"projects/[^/]+/locations/([^/]+)/keyRings/[^/]+/cryptoKeys/[^/]+")
_IN_CALLS = ("kmsKeyName", "destinationKmsKeyName")


def agent(project_number: str) -> str:
    """Return the account in whose name Cloud Storage acts, and uses keys, for a project."""
    return f"service-{project_number}@gs-project-accounts.iam.gserviceaccount.com"


def default_key(settings: Json) -> str:
    """Return the key of new objects in a bucket with these settings; empty for Google's own."""
    return str((settings.get("encryption") or {}).get("defaultKmsKeyName") or "")


def refuse_key_in_call(call: Call) -> None:
    """Say that an object's key can't be chosen by the call that writes it.

    Raises:
        ApiError: 501.
    """
    for name in _IN_CALLS:
        if call.arg(name):
            raise ApiError(501, f"the local cloud does not implement {name}: set the bucket's key")


def check_default_key(cloud: Cloud, bucket: Bucket, before: Json) -> None:
    """Refuse a bucket's new default key that Cloud Storage could not use.

    Args:
        cloud: the cloud.
        bucket: as it will be.
        before: the settings so far; empty for a new bucket.

    Raises:
        ApiError: 400 for a key elsewhere or a name that is none, 403 for one that is not there or
            that Cloud Storage's account may not use.
    """
    key = default_key(bucket.settings)
    if not key or key == default_key(before):
        return
    named = _NAME.fullmatch(key)
    if named is None:
        raise invalid(f"Invalid Cloud KMS key name: '{key}'.")
    if named.group(1).upper() != bucket.location:
        raise invalid(
            f"The Cloud KMS key location '{named.group(1)}' is not compatible with the bucket's "
            f"location '{bucket.location}'."
        )
    _require_use(cloud, bucket, key, kms.ENCRYPT)


def encrypting_version(cloud: Cloud, bucket: Bucket) -> str | None:
    """Return the key version with which an object is written now, or None for Google's own keys.

    Raises:
        ApiError: 403 when Cloud Storage's account may not use the key, 400 when it is disabled.
    """
    key = default_key(bucket.settings)
    if not key:
        return None
    _require_use(cloud, bucket, key, kms.ENCRYPT)
    return str(kms.primary(cloud, key)["name"])


def check_readable(cloud: Cloud, bucket: Bucket, version: Version) -> None:
    """Refuse to read an object whose key can't be used.

    Raises:
        ApiError: 403 when Cloud Storage's account may not use the key, 400 when it is disabled.
    """
    if version.kms_version is None:
        return
    key = version.kms_version.partition("/cryptoKeyVersions/")[0]
    _require_use(cloud, bucket, key, kms.DECRYPT)
    kms.enabled(cloud, version.kms_version)


def _require_use(cloud: Cloud, bucket: Bucket, key: str, permission: str) -> None:
    member = f"serviceAccount:{agent(bucket.project_number)}"
    if cloud.store.get(KEY, key) is None or not kms.may_use(cloud, member, key, permission):
        raise ApiError(
            403,
            "Permission denied on Cloud KMS key. Please ensure that your Cloud Storage service "
            f"account has been authorized to use this key ({member.partition(':')[2]} on {key}).",
        )
