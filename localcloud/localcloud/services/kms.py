"""The Cloud KMS API: key rings, symmetric keys, their versions and who may use them.

Like Google's, rings and keys can be made and never deleted.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Sequence

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from localcloud.core import access
from localcloud.core.call import Call, Json, Principal, page
from localcloud.core.clock import rfc3339, seconds_of
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record, public
from localcloud.services import iam_policy
from localcloud.services.compute import catalog

API = Api("cloudkms", ("v1",))

RING = "kms-key-ring"
"""The store's kind of key rings; the key is the full name `projects/p/locations/l/keyRings/r`."""
KEY = "kms-crypto-key"
"""The store's kind of keys, by full name."""
VERSION = "kms-crypto-key-version"
"""The store's kind of key versions, by full name."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,63}")
_WIDE = ("global", "us", "europe", "eur3", "eur4", "nam3", "asia")
_TITLES = {RING: "KeyRing", KEY: "CryptoKey", VERSION: "CryptoKeyVersion"}
_SECONDS = re.compile(r"\d+(\.\d{1,9})?s")
_SHORTEST_ROTATION = 86400.0
# Thirty days.
_DESTRUCTION = f"{30 * 86400}s"
_PATCHABLE = {"labels", "rotationPeriod", "nextRotationTime", "versionTemplate.algorithm"}
_SECRET_BYTES = 32
_NONCE_BYTES = 12
_EXTRA = "additionalAuthenticatedData"
ENCRYPT = "cloudkms.cryptoKeyVersions.useToEncrypt"
DECRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt"


def location(call: Call) -> str:
    """Return the location in the path, `projects/p/locations/l`.

    Raises ApiError: 404, as Google answers for a location without KMS.
    """
    place = call.params["locationsId"]
    if place not in catalog.regions() and place not in _WIDE:
        raise ApiError(
            404,
            f"The request concerns location '{place}' but was sent to location 'global'. Either "
            "Cloud KMS is not available in it or it does not exist.",
        )
    return f"projects/{call.project}/locations/{place}"


def ring_name(call: Call) -> str:
    """Return the full name of the key ring in the path."""
    return f"{location(call)}/keyRings/{call.params['keyRingsId']}"


def key_name(call: Call) -> str:
    """Return the full name of the key in the path."""
    return f"{ring_name(call)}/cryptoKeys/{call.params['cryptoKeysId']}"


def version_name(call: Call) -> str:
    """Return the full name of the key version in the path."""
    return f"{key_name(call)}/cryptoKeyVersions/{call.params['cryptoKeyVersionsId']}"


def levels(name: str) -> list[str]:
    """Return the resources whose policies count for a ring, key or version: it and its parents."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in (8, 6) if end <= len(parts)] + ["/".join(parts[:2])]


def resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policies count for a call on a ring or on what is below it."""
    if "cryptoKeysId" in call.params:
        return levels(key_name(call))
    return levels(ring_name(call))


RINGS = Collection(API, "projects.locations.keyRings", "cloudkms.keyRings", resources)
KEYS = Collection(API, f"{RINGS.path}.cryptoKeys", "cloudkms.cryptoKeys", resources)
VERSIONS = Collection(
    API, f"{KEYS.path}.cryptoKeyVersions", "cloudkms.cryptoKeyVersions", resources
)


def check_id(parameter: str, value: str) -> None:
    """Refuse an id that no key ring or key can have; 400."""
    if not _ID.fullmatch(value):
        raise invalid(f"{parameter} {value!r} does not match [a-zA-Z0-9_-]{{1,63}}.")


def load(cloud: Cloud, kind: str, name: str) -> Record:
    """Return the stored record; 404 when there is none."""
    return cloud.store.load(kind, name, ApiError(404, f"{_TITLES[kind]} {name} not found."))


@API.method("projects.locations.keyRings.create", permission="cloudkms.keyRings.create")
def create_ring(cloud: Cloud, call: Call) -> Json:
    """Create a key ring."""
    check_id("keyRingId", call.arg("keyRingId"))
    name = f"{location(call)}/keyRings/{call.arg('keyRingId')}"
    record = {"name": name, "createTime": rfc3339(cloud.clock.now())}
    cloud.store.add(RING, name, record, ApiError(409, f"KeyRing {name} already exists."))
    return record


@RINGS.method("get")
def get_ring(cloud: Cloud, call: Call) -> Json:
    """Return one key ring."""
    return load(cloud, RING, ring_name(call))


iam_policy.serve(RINGS, lambda cloud, call: str(load(cloud, RING, ring_name(call))["name"]))


@API.method("projects.locations.keyRings.list", permission="cloudkms.keyRings.list")
def list_rings(cloud: Cloud, call: Call) -> Json:
    """Return the key rings of a location."""
    found = [record for _, record in cloud.store.items(RING, f"{location(call)}/")]
    return page(call, "keyRings", found) | {"totalSize": len(found)}


@KEYS.method("create")
def create_key(cloud: Cloud, call: Call) -> Json:
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
        "destroyScheduledDuration": call.body.get("destroyScheduledDuration", _DESTRUCTION),
    }
    optional = call.sent(("labels", "rotationPeriod", "nextRotationTime"))
    record |= {field: value for field, value in optional.items() if value}
    _check_rotation(record)
    with cloud.store.locked():
        cloud.store.add(KEY, name, record, ApiError(409, f"CryptoKey {name} already exists."))
        if not call.flag("skipInitialVersionCreation"):
            _add_version(cloud, record, primary=True)
    return _key_view(cloud, name)


@KEYS.method("get")
def get_key(cloud: Cloud, call: Call) -> Json:
    """Return one key."""
    return _key_view(cloud, key_name(call))


iam_policy.serve(KEYS, lambda cloud, call: str(load(cloud, KEY, key_name(call))["name"]))


@KEYS.method("list")
def list_keys(cloud: Cloud, call: Call) -> Json:
    """Return the keys of a key ring."""
    names = cloud.store.keys(KEY, f"{ring_name(call)}/")
    shown = page(call, "cryptoKeys", [_key_view(cloud, name) for name in names])
    return shown | {"totalSize": len(names)}


@KEYS.method("patch", verb="update")
def patch_key(cloud: Cloud, call: Call) -> Json:
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
    return _key_view(cloud, record["name"])


@KEYS.method("updatePrimaryVersion", verb="update")
def update_primary_version(cloud: Cloud, call: Call) -> Json:
    """Encrypt with another version from now on."""
    with cloud.store.locked():
        record = load(cloud, KEY, key_name(call))
        chosen = f"{record['name']}/cryptoKeyVersions/{call.body.get('cryptoKeyVersionId', '')}"
        if _load_version(cloud, chosen)["state"] != "ENABLED":
            raise failed_precondition(f"{chosen} is not enabled.")
        record["_primary"] = chosen
        cloud.store.put(KEY, record["name"], record)
    return _key_view(cloud, record["name"])


def _key_view(cloud: Cloud, name: str) -> Json:
    """Return the key as the API shows it, with its primary version."""
    record = _rotated(cloud, load(cloud, KEY, name))
    shown = public(record)
    if "_primary" in record:
        shown["primary"] = public(_load_version(cloud, record["_primary"]))
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


def _add_version(cloud: Cloud, key: Record, *, primary: bool) -> Record:
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


def _rotated(cloud: Cloud, key: Record) -> Record:
    """Return the key after the rotations that have become due."""
    with cloud.store.locked():
        while (due := _moment(key.get("nextRotationTime"))) and due <= cloud.clock.now():
            period = float(key["rotationPeriod"][:-1])
            key["nextRotationTime"] = rfc3339(due + period)
            _add_version(cloud, key, primary=True)
    return key


def _load_version(cloud: Cloud, name: str) -> Record:
    """Return the version as it stands now: one whose time has come is destroyed, its secret gone.

    Raises ApiError: 404 when there is none.
    """
    with cloud.store.locked():
        record = load(cloud, VERSION, name)
        end = _moment(record.get("destroyTime"))
        if record["state"] == "DESTROY_SCHEDULED" and end and end <= cloud.clock.now():
            record |= {"state": "DESTROYED", "destroyEventTime": record.pop("destroyTime")}
            record.pop("_secret", None)
            cloud.store.put(VERSION, name, record)
    return record


@VERSIONS.method("create")
def create_version(cloud: Cloud, call: Call) -> Json:
    """Create a version, which is not the primary one yet."""
    with cloud.store.locked():
        return public(_add_version(cloud, load(cloud, KEY, key_name(call)), primary=False))


@VERSIONS.method("get")
def get_version(cloud: Cloud, call: Call) -> Json:
    """Return one version."""
    return public(_load_version(cloud, version_name(call)))


@VERSIONS.method("list")
def list_versions(cloud: Cloud, call: Call) -> Json:
    """Return the versions of a key."""
    key = _rotated(cloud, load(cloud, KEY, key_name(call)))
    names = cloud.store.keys(VERSION, f"{key['name']}/")
    found = [public(_load_version(cloud, name)) for name in names]
    return page(call, "cryptoKeyVersions", found) | {"totalSize": len(found)}


@VERSIONS.method("patch", verb="update")
def patch_version(cloud: Cloud, call: Call) -> Json:
    """Enable or disable a version."""
    state = call.body.get("state")
    if call.arg("updateMask") != "state" or state not in ("ENABLED", "DISABLED"):
        raise invalid("Only a version's state can be changed, to ENABLED or DISABLED.")
    return _moved(cloud, call, ("ENABLED", "DISABLED"), {"state": state})


@VERSIONS.method("destroy")
def destroy_version(cloud: Cloud, call: Call) -> Json:
    """Schedule a version for destruction; until then it can be restored, and not used."""
    wait = load(cloud, KEY, key_name(call))["destroyScheduledDuration"]
    end = rfc3339(cloud.clock.now() + float(wait[:-1]))
    change = {"state": "DESTROY_SCHEDULED", "destroyTime": end}
    return _moved(cloud, call, ("ENABLED", "DISABLED"), change)


@VERSIONS.method("restore")
def restore_version(cloud: Cloud, call: Call) -> Json:
    """Cancel the destruction; the version is disabled then."""
    return _moved(cloud, call, ("DESTROY_SCHEDULED",), {"state": "DISABLED"})


def _moved(cloud: Cloud, call: Call, from_: tuple[str, ...], change: Json) -> Json:
    name = version_name(call)
    with cloud.store.locked():
        record = _load_version(cloud, name)
        if record["state"] not in from_:
            raise failed_precondition(
                f"{name} is in state {record['state']}, which must be {' or '.join(from_)}."
            )
        record.pop("destroyTime", None)
        record |= change
        cloud.store.put(VERSION, name, record)
    return public(record)


def _moment(text: str | None) -> float | None:
    return seconds_of(text) if text else None


def primary(cloud: Cloud, key: str) -> Record:
    """Return the version that encrypts.

    Raises ApiError: 404 for a key that is not there, 400 when it has no enabled primary version.
    """
    record = _rotated(cloud, load(cloud, KEY, key))
    if "_primary" not in record:
        raise ApiError(
            400,
            f"{key} has no primary version.",
            status="FAILED_PRECONDITION",
            reason="keyDisabled",
        )
    return enabled(cloud, record["_primary"])


def enabled(cloud: Cloud, version: str) -> Record:
    """Return a version that can be used; 400 when it is disabled or destroyed."""
    record = _load_version(cloud, version)
    if record["state"] != "ENABLED":
        raise failed_precondition(f"{version} is not enabled, current state is: {record['state']}.")
    return record


def may_use(cloud: Cloud, member: str, key: str, permission: str) -> bool:
    """Return whether `member` may encrypt or decrypt with a key."""
    return access.has(cloud, Principal(member), permission, levels(key))


@API.method(f"{KEYS.path}.encrypt", permission=ENCRYPT, resources=resources)
def encrypt(cloud: Cloud, call: Call) -> Json:
    """Encrypt with the primary version."""
    version = primary(cloud, key_name(call))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    number = int(version["name"].rpartition("/")[2])
    plain, extra = _sent(call, "plaintext"), _sent(call, _EXTRA)
    sealed = number.to_bytes(4, "big") + nonce + _cipher(version).encrypt(nonce, plain, extra)
    return {
        "name": version["name"],
        "ciphertext": base64.b64encode(sealed).decode(),
        "ciphertextCrc32c": str(google_crc32c.value(sealed)),
        "verifiedPlaintextCrc32c": "plaintextCrc32c" in call.body,
        "verifiedAdditionalAuthenticatedDataCrc32c": f"{_EXTRA}Crc32c" in call.body,
        "protectionLevel": version["protectionLevel"],
    }


@API.method(f"{KEYS.path}.decrypt", permission=DECRYPT, resources=resources)
def decrypt(cloud: Cloud, call: Call) -> Json:
    """Decrypt with the version that encrypted."""
    sealed, extra = _sent(call, "ciphertext"), _sent(call, _EXTRA)
    number, nonce = int.from_bytes(sealed[:4], "big"), sealed[4 : 4 + _NONCE_BYTES]
    name = f"{key_name(call)}/cryptoKeyVersions/{number}"
    version = enabled(cloud, name)
    try:
        plain = _cipher(version).decrypt(nonce, sealed[4 + _NONCE_BYTES :], extra)
    except (InvalidTag, ValueError):
        raise invalid("Decryption failed: the ciphertext is invalid.") from None
    return {
        "plaintext": base64.b64encode(plain).decode(),
        "plaintextCrc32c": str(google_crc32c.value(plain)),
        "usedPrimary": _rotated(cloud, load(cloud, KEY, key_name(call))).get("_primary") == name,
        "protectionLevel": version["protectionLevel"],
    }


def _cipher(version: Record) -> AESGCM:
    return AESGCM(bytes.fromhex(version["_secret"]))


def _sent(call: Call, field: str) -> bytes:
    """Return the bytes in a field, which must agree with their checksum if one is sent."""
    try:
        sent = base64.b64decode(call.body.get(field, ""), validate=True)
    except ValueError:
        raise invalid(f"{field} is not base64.") from None
    checksum = call.body.get(f"{field}Crc32c")
    if checksum is not None and int(checksum) != google_crc32c.value(sent):
        raise invalid(f"{field}Crc32c is not the CRC32C of {field}.")
    return sent
