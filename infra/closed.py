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
        beside.look(lambda: turned_on(bucket), lambda found: _tell(bucket, found))


def _tell(bucket: str, found: list[str]) -> None:
    if found:
        pulumi.log.warn(
            f"gs://{bucket}: the update turns {' and '.join(found)} on. Who reads it by the ACL of "
            "an object, or without logging in, loses access"
        )


def turned_on(bucket: str) -> list[str]:
    """Return which of its protections a bucket lacks; none if it is not there or nobody may ask."""
    try:
        session = users_session()
        query = {"fields": "iamConfiguration"}
        answer = session and session.get(_URL.format(quote(bucket)), params=query, timeout=_SECONDS)
        access = answer.json()["iamConfiguration"] if answer else {}
    except Exception:  # No error of any kind may fail a preview.
        return []
    lacks = {
        "uniform access": access and not access["uniformBucketLevelAccess"]["enabled"],
        "public access prevention": access and access["publicAccessPrevention"] != "enforced",
    }
    return [name for name, lacking in lacks.items() if lacking]
