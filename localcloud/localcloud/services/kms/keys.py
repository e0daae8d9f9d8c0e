"""Keys: symmetric ones for encryption. They can be made and never deleted."""

from __future__ import annotations

import re

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.store import Record
from localcloud.services import iam_policy
from localcloud.services.kms import versions
from localcloud.services.kms.api import KEY, KEYS, RING, check_id, key_name, load, ring_name
from localcloud.services.paging import page

_SECONDS = re.compile(r"\d+(\.\d{1,9})?s")
_SHORTEST_ROTATION = 86400.0
_DAYS_TO_DESTRUCTION = 30
_PATCHABLE = {"labels", "rotationPeriod", "nextRotationTime", "versionTemplate.algorithm"}


@KEYS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a key, with its first version unless the caller wants none."""
    check_id("cryptoKeyId", call.arg("cryptoKeyId"))
    if call.body.get("purpose") != "ENCRYPT_DECRYPT":
        raise _only_symmetric(f"the purpose {call.body.get('purpose')}")
    if call.body.get("importOnly"):
        raise _only_symmetric("importOnly")
    template = call.body.get("versionTemplate") or {}
    level = template.get("protectionLevel") or "SOFTWARE"
    if level not in ("SOFTWARE", "HSM"):
        raise _only_symmetric(f"the protection level {level}")
    ring = ring_name(call)
    load(cloud, RING, ring)
    name = f"{ring}/cryptoKeys/{call.arg('cryptoKeyId')}"
    record: Record = {
        "name": name,
        "purpose": "ENCRYPT_DECRYPT",
        "createTime": rfc3339(cloud.clock.now()),
        "versionTemplate": {"protectionLevel": level, "algorithm": _algorithm(template)},
        "destroyScheduledDuration": call.body.get(
            "destroyScheduledDuration", f"{_DAYS_TO_DESTRUCTION * 86400}s"
        ),
    }
    record |= {
        field: call.body[field]
        for field in ("labels", "rotationPeriod", "nextRotationTime")
        if call.body.get(field)
    }
    _check_rotation(record)
    with cloud.store.locked():
        cloud.store.add(KEY, name, record, ApiError(409, f"CryptoKey {name} already exists."))
        if not call.flag("skipInitialVersionCreation"):
            versions.add(cloud, record, primary=True)
    return view(cloud, name)


@KEYS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one key."""
    return view(cloud, key_name(call))


iam_policy.serve(KEYS, lambda cloud, call: str(load(cloud, KEY, key_name(call))["name"]))


@KEYS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the keys of a key ring."""
    names = cloud.store.keys(KEY, f"{ring_name(call)}/")
    return page(call, "cryptoKeys", [view(cloud, name) for name in names]) | {
        "totalSize": len(names)
    }


@KEYS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away."""
    mask = call.mask()
    if not mask or not _PATCHABLE.issuperset(mask):
        raise invalid(f"updateMask {mask} must name some of {', '.join(sorted(_PATCHABLE))}.")
    with cloud.store.locked():
        record = load(cloud, KEY, key_name(call))
        for field in mask:
            if field == "versionTemplate.algorithm":
                algorithm = _algorithm(call.body.get("versionTemplate") or {})
                record["versionTemplate"]["algorithm"] = algorithm
            elif call.body.get(field):
                record[field] = call.body[field]
            else:
                record.pop(field, None)
        _check_rotation(record)
        cloud.store.put(KEY, record["name"], record)
    return view(cloud, record["name"])


@KEYS.method("updatePrimaryVersion", verb="update")
def update_primary_version(cloud: Cloud, call: Call) -> Json:
    """Encrypt with another version from now on."""
    with cloud.store.locked():
        record = load(cloud, KEY, key_name(call))
        chosen = f"{record['name']}/cryptoKeyVersions/{call.body.get('cryptoKeyVersionId', '')}"
        if versions.load_current(cloud, chosen)["state"] != "ENABLED":
            raise failed_precondition(f"{chosen} is not enabled.")
        record["_primary"] = chosen
        cloud.store.put(KEY, record["name"], record)
    return view(cloud, record["name"])


def view(cloud: Cloud, name: str) -> Json:
    """Return the key as the API shows it, with its primary version."""
    record = versions.rotated(cloud, load(cloud, KEY, name))
    shown = versions.shown(record)
    if "_primary" in record:
        shown["primary"] = versions.shown(versions.load_current(cloud, record["_primary"]))
    return shown


def _algorithm(template: Json) -> str:
    algorithm: str = template.get("algorithm") or "GOOGLE_SYMMETRIC_ENCRYPTION"
    if algorithm != "GOOGLE_SYMMETRIC_ENCRYPTION":
        raise _only_symmetric(f"the algorithm {algorithm}")
    return algorithm


def _check_rotation(record: Record) -> None:
    period = record.get("rotationPeriod")
    if bool(period) != bool(record.get("nextRotationTime")):
        raise invalid("rotation_period and next_rotation_time must be set together.")
    if period and (not _SECONDS.fullmatch(period) or float(period[:-1]) < _SHORTEST_ROTATION):
        raise invalid(f"rotation_period {period} must be at least 24 hours, as 86400s.")


def _only_symmetric(what: str) -> ApiError:
    return ApiError(501, f"the local cloud's KMS has symmetric keys only, not {what}")
