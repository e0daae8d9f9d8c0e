"""A bucket's settings: defaults, changes, and what Google accepts."""

from __future__ import annotations

import re

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.errors import invalid
from localcloud.services.storage import lifecycle_rules
from localcloud.services.storage.object_fields import check_storage_class

WRITABLE = {
    "autoclass",
    "billing",
    "cors",
    "customPlacementConfig",
    "defaultEventBasedHold",
    "encryption",
    "iamConfiguration",
    "labels",
    "lifecycle",
    "logging",
    "retentionPolicy",
    "rpo",
    "softDeletePolicy",
    "storageClass",
    "versioning",
    "website",
}
"""The fields that callers set, not Google."""
_LABEL = re.compile(r"[\w-]{0,63}")
_SOFT_DELETE = range(7 * 86400, 90 * 86400 + 1)
_DEFAULT_SOFT_DELETE = str(7 * 86400)


def merged(settings: Json, body: Json) -> Json:
    """Return `settings` after a PATCH: a null deletes, objects are changed field by field."""
    result = dict(settings)
    for name, value in body.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and name != "lifecycle":
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result


def complete(settings: Json, before: Json, now: float) -> Json:
    """Return `settings` with Google's defaults and the times that it notes, checked.

    Args:
        settings: what is wanted.
        before: the settings so far; empty for a new bucket.
        now: seconds since the epoch.

    Raises:
        ApiError: 400 with all that is wrong.
    """
    moment = rfc3339(now)
    result = merged({}, settings)
    result.setdefault("storageClass", before.get("storageClass", "STANDARD"))
    iam = result["iamConfiguration"] = _access(result, before, now)
    _soft_delete(result, before, moment)
    _dated(result, before, moment)
    if not result.get("lifecycle", {}).get("rule"):
        result.pop("lifecycle", None)
    for empty in ("labels", "cors", "website", "logging", "billing", "encryption"):
        if not result.get(empty):
            result.pop(empty, None)
    check_storage_class(result["storageClass"])
    if (result.get("autoclass") or {}).get("enabled"):
        # Autoclass begins with STANDARD, whatever is asked: docs/autoclass of Cloud Storage.
        result["storageClass"] = "STANDARD"
    problems = [*_label_problems(result.get("labels", {})), *_access_problems(iam)]
    problems += _retention_problems(result)
    problems += lifecycle_rules.problems(result.get("lifecycle", {}))
    if problems:
        raise invalid("\n".join(problems))
    return result


def _access(settings: Json, before: Json, now: float) -> Json:
    iam = dict(settings.get("iamConfiguration") or {})
    # An old name of the same field, which clients still send.
    old_name = iam.pop("bucketPolicyOnly", None)
    uniform = iam.get("uniformBucketLevelAccess") or old_name or {}
    enabled = bool(uniform.get("enabled"))
    was = before.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    shown: Json = {"enabled": enabled}
    if enabled:
        shown["lockedTime"] = was.get("lockedTime") or rfc3339(now + 90 * 86400)
    prevention = iam.get("publicAccessPrevention") or "inherited"
    return {"uniformBucketLevelAccess": shown, "publicAccessPrevention": prevention}


def _access_problems(iam: Json) -> list[str]:
    prevention = iam["publicAccessPrevention"]
    if prevention in ("inherited", "enforced"):
        return []
    return [
        f"Invalid value for publicAccessPrevention: '{prevention}' is neither 'inherited' nor "
        "'enforced'."
    ]


def _soft_delete(settings: Json, before: Json, moment: str) -> None:
    wanted = settings.get("softDeletePolicy") or {}
    seconds = str(wanted.get("retentionDurationSeconds", _DEFAULT_SOFT_DELETE))
    was = before.get("softDeletePolicy", {})
    policy: Json = {"retentionDurationSeconds": seconds}
    if seconds != "0":
        same = was.get("retentionDurationSeconds") == seconds
        policy["effectiveTime"] = was["effectiveTime"] if same else moment
    settings["softDeletePolicy"] = policy


def _dated(settings: Json, before: Json, moment: str) -> None:
    """Note since when a retention policy and autoclass are as they are."""
    retention = settings.get("retentionPolicy")
    if not retention or not int(retention.get("retentionPeriod") or 0):
        settings.pop("retentionPolicy", None)
    else:
        retention["retentionPeriod"] = str(retention["retentionPeriod"])
        retention["effectiveTime"] = (before.get("retentionPolicy") or {}).get(
            "effectiveTime", moment
        )
    autoclass = settings.get("autoclass")
    if autoclass is None:
        return
    was = before.get("autoclass") or {}
    same = bool(was.get("enabled")) == bool(autoclass.get("enabled")) and was
    autoclass["toggleTime"] = was["toggleTime"] if same else moment
    if autoclass.get("enabled"):
        terminal = autoclass.setdefault("terminalStorageClass", "NEARLINE")
        same = was.get("terminalStorageClass") == terminal
        time = was.get("terminalStorageClassUpdateTime") if same else None
        autoclass["terminalStorageClassUpdateTime"] = time or moment


def _label_problems(labels: Json) -> list[str]:
    found = [] if len(labels) <= 64 else [f"A bucket has at most 64 labels, not {len(labels)}."]
    for key, value in labels.items():
        if not key or not key[0].islower() or not _is_label(key) or not _is_label(value):
            found.append(
                f"Invalid label {key}={value}: keys and values have at most 63 lower-case letters, "
                "digits, dashes and underscores, and a key begins with a letter."
            )
    return found


def _is_label(text: str) -> bool:
    return bool(_LABEL.fullmatch(text)) and text == text.lower()


def _retention_problems(settings: Json) -> list[str]:
    found = []
    seconds = int(settings["softDeletePolicy"]["retentionDurationSeconds"])
    if seconds and seconds not in _SOFT_DELETE:
        found.append(
            f"Invalid softDeletePolicy.retentionDurationSeconds: {seconds} is neither 0 nor "
            f"between {_SOFT_DELETE.start} (7 days) and {_SOFT_DELETE.stop - 1} (90 days)."
        )
    period = int((settings.get("retentionPolicy") or {}).get("retentionPeriod", 0))
    if not 0 <= period < 100 * 365 * 86400:
        found.append(f"Invalid retentionPolicy.retentionPeriod: {period} is 100 years or more.")
    terminal = (settings.get("autoclass") or {}).get("terminalStorageClass", "NEARLINE")
    if terminal not in ("NEARLINE", "ARCHIVE"):
        found.append(
            f"Invalid autoclass.terminalStorageClass: '{terminal}' is neither NEARLINE nor ARCHIVE."
        )
    return found
