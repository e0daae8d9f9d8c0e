"""Versions of keys: the secrets themselves, their states and how one follows the other."""

from __future__ import annotations

import secrets

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339, seconds_of
from localcloud.core.cloud import Cloud
from localcloud.core.errors import failed_precondition, invalid
from localcloud.core.store import Record
from localcloud.services.kms.api import KEY, VERSION, VERSIONS, key_name, load, version_name
from localcloud.services.paging import page

_SECRET_BYTES = 32


def add(cloud: Cloud, key: Record, *, primary: bool) -> Record:
    """Give a key a new version; hold the store's lock."""
    prefix = f"{key['name']}/cryptoKeyVersions/"
    moment = rfc3339(cloud.clock.now())
    record = {
        "name": f"{prefix}{len(cloud.store.keys(VERSION, prefix)) + 1}",
        "state": "ENABLED",
        "createTime": moment,
        "generateTime": moment,
        **key["versionTemplate"],
        "_secret": secrets.token_hex(_SECRET_BYTES),
    }
    cloud.store.put(VERSION, record["name"], record)
    if primary:
        key["_primary"] = record["name"]
        cloud.store.put(KEY, key["name"], key)
    return record


def rotated(cloud: Cloud, key: Record) -> Record:
    """Return the key after the rotations that were due meanwhile."""
    with cloud.store.locked():
        while (due := _moment(key.get("nextRotationTime"))) and due <= cloud.clock.now():
            period = float(key["rotationPeriod"][:-1])
            key["nextRotationTime"] = rfc3339(due + period)
            add(cloud, key, primary=True)
    return key


def load_current(cloud: Cloud, name: str) -> Record:
    """Return the version as it stands now: one whose time has come is destroyed, its secret gone.

    Raises:
        ApiError: 404 when there is none.
    """
    with cloud.store.locked():
        record = load(cloud, VERSION, name)
        end = _moment(record.get("destroyTime"))
        if record["state"] == "DESTROY_SCHEDULED" and end and end <= cloud.clock.now():
            record |= {"state": "DESTROYED", "destroyEventTime": record.pop("destroyTime")}
            record.pop("_secret", None)
            cloud.store.put(VERSION, name, record)
    return record


def shown(record: Record) -> Json:
    """Return a key or version as the API shows it."""
    return {field: value for field, value in record.items() if not field.startswith("_")}


@VERSIONS.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a version, which is not the primary one yet."""
    with cloud.store.locked():
        return shown(add(cloud, load(cloud, KEY, key_name(call)), primary=False))


@VERSIONS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one version."""
    return shown(load_current(cloud, version_name(call)))


@VERSIONS.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the versions of a key."""
    key = rotated(cloud, load(cloud, KEY, key_name(call)))
    names = cloud.store.keys(VERSION, f"{key['name']}/")
    found = [shown(load_current(cloud, name)) for name in names]
    return page(call, "cryptoKeyVersions", found) | {"totalSize": len(found)}


@VERSIONS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Enable or disable a version."""
    state = call.body.get("state")
    if call.arg("updateMask") != "state" or state not in ("ENABLED", "DISABLED"):
        raise invalid("Only a version's state can be changed, to ENABLED or DISABLED.")
    return _moved(cloud, call, ("ENABLED", "DISABLED"), {"state": state})


@VERSIONS.method("destroy")
def destroy(cloud: Cloud, call: Call) -> Json:
    """Schedule a version for destruction; until then it can be restored, and not used."""
    wait = load(cloud, KEY, key_name(call))["destroyScheduledDuration"]
    end = rfc3339(cloud.clock.now() + float(wait[:-1]))
    change = {"state": "DESTROY_SCHEDULED", "destroyTime": end}
    return _moved(cloud, call, ("ENABLED", "DISABLED"), change)


@VERSIONS.method("restore")
def restore(cloud: Cloud, call: Call) -> Json:
    """Call the destruction off; the version is disabled then."""
    return _moved(cloud, call, ("DESTROY_SCHEDULED",), {"state": "DISABLED"})


def _moved(cloud: Cloud, call: Call, from_: tuple[str, ...], change: Json) -> Json:
    name = version_name(call)
    with cloud.store.locked():
        record = load_current(cloud, name)
        if record["state"] not in from_:
            raise failed_precondition(
                f"{name} is in state {record['state']}, which must be {' or '.join(from_)}."
            )
        record.pop("destroyTime", None)
        record |= change
        cloud.store.put(VERSION, name, record)
    return shown(record)


def _moment(text: str | None) -> float | None:
    return seconds_of(text) if text else None
