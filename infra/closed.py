"""A preview warns of what the stack turns on in a bucket that it did not make (docs/state.md)."""

from __future__ import annotations

from urllib.parse import quote

import pulumi

from infra import beside
from infra.enabled import users_session
from infra.settings import StackSettings

_URL = "https://storage.googleapis.com/storage/v1/b/{}"
_SECONDS = 10.0


def report(settings: StackSettings, bucket: str) -> None:
    """Warn if somebody would lose access; the look-up runs beside the program."""
    if settings.bucket.create:
        beside.look(lambda: is_open(bucket), lambda found: _tell(bucket, found))


def _tell(bucket: str, found: bool) -> None:
    if found:
        pulumi.log.warn(
            f"gs://{bucket}: the update turns on uniform access and public access prevention. Who "
            "reads it by the ACL of an object, or without logging in, loses access"
        )


def is_open(bucket: str) -> bool:
    """Return whether a bucket lacks a protection; not if it isn't there, or nobody may ask."""
    try:
        session, query = users_session(), {"fields": "iamConfiguration"}
        url = _URL.format(quote(bucket))
        said = session.get(url, params=query, timeout=_SECONDS).json() if session else {}
        access = said["iamConfiguration"]
        shut = access["uniformBucketLevelAccess"]["enabled"]
    except Exception:  # No error of any kind may fail a preview.
        return False
    return not shut or access["publicAccessPrevention"] != "enforced"
