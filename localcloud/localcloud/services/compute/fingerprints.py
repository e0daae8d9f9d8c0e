"""Fingerprints, by which one change cannot undo another unseen."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from localcloud.core.call import Json, same_bytes
from localcloud.core.errors import ApiError


def fingerprint(value: Any) -> str:
    """Return a short text that changes whenever `value` does."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode()


def require_match(sent: str | None, actual: str | None, what: str) -> None:
    """Refuse a change that was made to an older state.

    Args:
        sent: the fingerprint in the request, if any.
        actual: the stored one.
        what: `metadata`, `labels`, … as the message names it.
    """
    if not same_bytes(sent, actual):
        raise ApiError(
            412,
            "Labels fingerprint either invalid or resource labels have changed"
            if what == "labels"
            else f"Supplied fingerprint does not match current {what} fingerprint.",
        )


def stamp(record: Json) -> None:
    """Renew the fingerprint of a whole record."""
    record.pop("fingerprint", None)
    record["fingerprint"] = fingerprint(record)


def stamp_labels(record: Json) -> None:
    """Renew the fingerprint of a record's labels."""
    record["labelFingerprint"] = fingerprint(record.get("labels", {}))
