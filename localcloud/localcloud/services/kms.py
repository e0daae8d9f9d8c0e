"""The Cloud KMS API: key rings, symmetric keys, and who may use them.

Like Google's, rings and keys can be made and never deleted. A key has one version: its rotation is
kept and shown, but no one waits here for the months after which it would begin.
"""

import base64
import re
import secrets
from collections.abc import Sequence

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from localcloud.core import Api, ApiError, Cloud, Collection, access, errors, invalid, rfc3339
from localcloud.core.call import Call, Json, Principal
from localcloud.core.store import Record, public
from localcloud.services import iam_policy, kind
from localcloud.services.compute import catalog

API = Api("cloudkms", ("v1",))

RING = "kms-key-ring"
"""The store's kind of key rings; the key is the full name `projects/p/locations/l/keyRings/r`."""
KEY = "kms-crypto-key"
"""The store's kind of keys, by full name."""
VERSION = "kms-crypto-key-version"
"""The store's kind of key versions, by full name."""

_ID = re.compile(r"[a-zA-Z0-9_-]{1,63}")
# The multi-regions; besides them KMS is in every region (cloud.google.com/kms/docs/locations).
_WIDE = ("global", "us", "europe", "eur3", "eur4", "nam3", "asia")
_SECONDS = re.compile(r"\d+(\.\d{1,9})?s")
# "Must be at least 24 hours" and "if not specified … 30 days", both the discovery document's.
_SHORTEST_ROTATION = 86400.0
_DESTRUCTION = f"{30 * 86400}s"
_OPTIONAL = ("labels", "rotationPeriod", "nextRotationTime")
_LEVELS = ("SOFTWARE", "HSM")
_ALGORITHM = "GOOGLE_SYMMETRIC_ENCRYPTION"
# AES-256 in Galois/Counter Mode, with the nonce of 96 bits that the mode is made for: the algorithm
# that Google names for symmetric keys (cloud.google.com/kms/docs/algorithms).
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


def levels(name: str) -> list[str]:
    """Return the resources whose policies count for a ring, key or version: it and its parents.

    Versions have no policies of their own.
    """
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in (8, 6) if end <= len(parts)] + ["/".join(parts[:2])]


def resources(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policies count for a call on a ring or on what is below it."""
    return levels((_KEY if "cryptoKeysId" in call.params else _RING).name(call))


RINGS = Collection(API, "projects.locations.keyRings", "cloudkms.keyRings", resources)
KEYS = Collection(API, f"{RINGS.path}.cryptoKeys", "cloudkms.cryptoKeys", resources)
VERSIONS = Collection(
    API, f"{KEYS.path}.cryptoKeyVersions", "cloudkms.cryptoKeyVersions", resources
)
# Google has no methods to delete rings and keys: their names stay taken for ever.
_RING = kind.Kind(
    collection=RINGS,
    store=RING,
    items="keyRings",
    missing=lambda name: f"KeyRing {name} not found.",
    parent=location,
    counted=True,
)
_KEY = kind.Kind(
    collection=KEYS,
    store=KEY,
    items="cryptoKeys",
    missing=lambda name: f"CryptoKey {name} not found.",
    parent=_RING.name,
    listed=resources,
    view=lambda cloud, name, record: record | {"primary": public(primary(cloud, name))},
    counted=True,
)
_VERSION = kind.Kind(
    collection=VERSIONS,
    store=VERSION,
    items="cryptoKeyVersions",
    missing=lambda name: f"CryptoKeyVersion {name} not found.",
    parent=_KEY.name,
    listed=resources,
    counted=True,
)
kind.serve(_RING, "get", "list")
kind.serve(_KEY, "get", "list")
kind.serve(_VERSION, "get", "list")
iam_policy.serve(RINGS, _RING.existing)
iam_policy.serve(KEYS, _KEY.existing)


def _new_name(call: Call, of: kind.Kind, parameter: str) -> str:
    """Return the full name that the caller has chosen for a ring or key."""
    short = call.arg(parameter)
    if not _ID.fullmatch(short):
        raise invalid(f"{parameter} {short!r} does not match [a-zA-Z0-9_-]{{1,63}}.")
    return of.prefix(call) + short


@API.method("projects.locations.keyRings.create", permission="cloudkms.keyRings.create")
def _create_ring(cloud: Cloud, call: Call) -> Json:
    name = _new_name(call, _RING, "keyRingId")
    record = {"name": name, "createTime": rfc3339(cloud.clock.now())}
    cloud.store.add(RING, name, record, ApiError(409, f"KeyRing {name} already exists."))
    return record


@KEYS.method("create")
def create_key(cloud: Cloud, call: Call) -> Json:
    """Create a key with its version.

    What the local cloud has no cipher for is refused here, not at the first use.
    """
    name = _new_name(call, _KEY, "cryptoKeyId")
    if call.flag("skipInitialVersionCreation"):
        raise ApiError(501, "the local cloud's keys have one version, made with them")
    template = call.body.get("versionTemplate") or {}
    level = template.get("protectionLevel") or "SOFTWARE"
    algorithm = template.get("algorithm") or _ALGORITHM
    purpose = call.body.get("purpose")
    if purpose != "ENCRYPT_DECRYPT" or algorithm != _ALGORITHM or level not in _LEVELS:
        wanted = f"the purpose {purpose}, the algorithm {algorithm} and the level {level}"
        raise ApiError(501, f"the local cloud's KMS has symmetric keys only, not {wanted}")
    _RING.load(cloud, call)
    moment = rfc3339(cloud.clock.now())
    made = {"protectionLevel": level, "algorithm": algorithm}
    record: Record = {
        "name": name,
        "purpose": purpose,
        "createTime": moment,
        "versionTemplate": made,
        "destroyScheduledDuration": call.body.get("destroyScheduledDuration", _DESTRUCTION),
    }
    record |= {field: value for field, value in call.sent(_OPTIONAL).items() if value}
    _check_rotation(record)
    version = {
        "name": f"{name}/cryptoKeyVersions/1",
        "state": "ENABLED",
        "createTime": moment,
        "generateTime": moment,
        **made,
        "_secret": secrets.token_hex(_SECRET_BYTES),
    }
    # A key without its version must never be seen: both are made under one lock.
    with cloud.store.locked():
        cloud.store.add(KEY, name, record, ApiError(409, f"CryptoKey {name} already exists."))
        cloud.store.put(VERSION, version["name"], version)
    return _KEY.view(cloud, name, record)


@KEYS.method("patch", verb="update")
def patch_key(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away.

    Google's provider takes the rotation away when it deletes a key: else Google would go on adding
    versions, each of which costs.
    """
    mask = kind.known_mask(call.mask(), _OPTIONAL, "updateMask")
    with cloud.store.locked():
        record = _KEY.load(cloud, call)
        for field in mask:
            record.pop(field, None)
            if call.body.get(field):
                record[field] = call.body[field]
        _check_rotation(record)
        cloud.store.put(KEY, record["name"], record)
    return _KEY.view(cloud, record["name"], record)


def _check_rotation(record: Record) -> None:
    # "If rotation_period is set, next_rotation_time must also be set" (the discovery document).
    period = record.get("rotationPeriod")
    if bool(period) != bool(record.get("nextRotationTime")):
        raise invalid("rotation_period and next_rotation_time must be set together.")
    if period and (not _SECONDS.fullmatch(period) or float(period[:-1]) < _SHORTEST_ROTATION):
        raise invalid(f"rotation_period {period} must be at least 24 hours, as 86400s.")


@VERSIONS.method("patch", verb="update")
def patch_version(cloud: Cloud, call: Call) -> Json:
    """Enable or disable a version.

    A disabled one is how an owner locks everybody out at once, and lets them in again.
    """
    state = call.body.get("state")
    if call.arg("updateMask") != "state" or state not in ("ENABLED", "DISABLED"):
        raise invalid("Only a version's state can be changed, to ENABLED or DISABLED.")
    return _moved(cloud, call, {"state": state}, ("ENABLED", "DISABLED"))


@VERSIONS.method("destroy")
def destroy_version(cloud: Cloud, call: Call) -> Json:
    """Schedule a version for destruction; until then it can be restored, and not used.

    The time comes from the key, which keeps what it was created with: the field is immutable.
    """
    wait = _KEY.load(cloud, call)["destroyScheduledDuration"]
    end = rfc3339(cloud.clock.now() + float(wait[:-1]))
    change = {"state": "DESTROY_SCHEDULED", "destroyTime": end}
    return _moved(cloud, call, change, ("ENABLED", "DISABLED"))


@VERSIONS.method("restore")
def restore_version(cloud: Cloud, call: Call) -> Json:
    """Cancel the destruction; the version is disabled then, as Google leaves it."""
    return _moved(cloud, call, {"state": "DISABLED"}, ("DESTROY_SCHEDULED",))


def _moved(cloud: Cloud, call: Call, change: Json, from_: tuple[str, ...]) -> Json:
    """Change a version in one of the states `from_`; 400 also tells a client that it repeats."""
    with cloud.store.locked():
        record = _VERSION.load(cloud, call)
        if record["state"] not in from_:
            message = f"{record['name']} is in state {record['state']}, not {' or '.join(from_)}."
            raise errors.failed_precondition(message)
        record.pop("destroyTime", None)
        record |= change
        cloud.store.put(VERSION, record["name"], record)
    return public(record)


def primary(cloud: Cloud, key: str) -> Record:
    """Return the version of a key, whatever its state; 404 for a key that is not there."""
    _KEY.find(cloud, key)
    return _VERSION.find(cloud, f"{key}/cryptoKeyVersions/1")


def enabled(cloud: Cloud, key: str) -> Record:
    """Return the version of a key if it can be used; 400 when it is disabled or destroyed."""
    record = primary(cloud, key)
    if record["state"] != "ENABLED":
        what = f"{record['name']} is not enabled, current state is: {record['state']}."
        raise errors.failed_precondition(what)
    return record


def may_use(cloud: Cloud, member: str, key: str, permission: str) -> bool:
    """Return whether `member` may encrypt or decrypt with a key.

    Cloud Storage asks for its own agent, not for the caller: users of an encrypted bucket need no
    right on its key.
    """
    return access.has(cloud, Principal(member), permission, levels(key))


@API.method(f"{KEYS.path}.encrypt", permission=ENCRYPT, resources=resources)
def encrypt(cloud: Cloud, call: Call) -> Json:
    """Encrypt.

    Checksums are optional in the request; the answer says which of them were checked, so that a
    client sees that its own one arrived.
    """
    version = enabled(cloud, _KEY.name(call))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    plain, extra = _sent(call, "plaintext"), _sent(call, _EXTRA)
    sealed = nonce + _cipher(version).encrypt(nonce, plain, extra)
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
    """Decrypt what the key has encrypted; what was altered on its way is 400."""
    sealed, extra = _sent(call, "ciphertext"), _sent(call, _EXTRA)
    version = enabled(cloud, _KEY.name(call))
    try:
        plain = _cipher(version).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], extra)
    except (InvalidTag, ValueError):
        raise invalid("Decryption failed: the ciphertext is invalid.") from None
    return {
        "plaintext": base64.b64encode(plain).decode(),
        "plaintextCrc32c": str(google_crc32c.value(plain)),
        "usedPrimary": True,
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
