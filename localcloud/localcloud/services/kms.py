"""The Cloud KMS API: key rings, symmetric keys, their versions and who may use them.

Like Google's, rings and keys can be made and never deleted.
"""

import base64
import re
import secrets
from collections.abc import Sequence

import google_crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from localcloud.core import access
from localcloud.core.call import Call, Json, Principal, page
from localcloud.core.clock import optional_seconds_of, rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.registry import Api, Collection
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
_PATCHABLE = ("labels", "nextRotationTime", "rotationPeriod", "versionTemplate.algorithm")
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
    view=lambda cloud, name, record: _key_view(cloud, name),
    counted=True,
)
_VERSION = kind.Kind(
    collection=VERSIONS,
    store=VERSION,
    items="cryptoKeyVersions",
    missing=lambda name: f"CryptoKeyVersion {name} not found.",
    parent=_KEY.name,
    listed=resources,
    view=lambda cloud, name, record: public(_load_version(cloud, name)),
)
kind.serve(_RING, "get", "list")
kind.serve(_KEY, "get", "list")
kind.serve(_VERSION, "get")
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
    """Create a key, with its first version unless the caller wants none.

    What the local cloud has no cipher for is refused here, not at the first use.
    """
    name = _new_name(call, _KEY, "cryptoKeyId")
    if call.body.get("purpose") != "ENCRYPT_DECRYPT":
        raise _only_symmetric(f"the purpose {call.body.get('purpose')}")
    if call.body.get("importOnly"):
        raise _only_symmetric("importOnly")
    template = call.body.get("versionTemplate") or {}
    level = template.get("protectionLevel") or "SOFTWARE"
    if level not in ("SOFTWARE", "HSM"):
        raise _only_symmetric(f"the protection level {level}")
    _RING.load(cloud, call)
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
    # A key without a version would never be seen: both are made under one lock.
    with cloud.store.locked():
        cloud.store.add(KEY, name, record, ApiError(409, f"CryptoKey {name} already exists."))
        if not call.flag("skipInitialVersionCreation"):
            _add_version(cloud, record, primary=True)
    return _key_view(cloud, name)


@KEYS.method("patch", verb="update")
def patch_key(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names; a field that is not sent is taken away.

    The template's protection level is immutable; of the template only the algorithm can be named.
    """
    mask = kind.known_mask(call.mask(), _PATCHABLE, "updateMask")
    with cloud.store.locked():
        record = _KEY.load(cloud, call)
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
    """Encrypt with another version from now on.

    What older versions have encrypted stays readable: a ciphertext carries its version.
    """
    with cloud.store.locked():
        record = _KEY.load(cloud, call)
        chosen = f"{record['name']}/cryptoKeyVersions/{call.body.get('cryptoKeyVersionId', '')}"
        if _load_version(cloud, chosen)["state"] != "ENABLED":
            raise failed_precondition(f"{chosen} is not enabled.")
        record["_primary"] = chosen
        cloud.store.put(KEY, record["name"], record)
    return _key_view(cloud, record["name"])


def _key_view(cloud: Cloud, name: str) -> Json:
    """Return the key as the API shows it, with its primary version.

    "A copy of the primary CryptoKeyVersion that will be used by Encrypt": a key without one omits
    the field.
    """
    record = _rotated(cloud, _KEY.find(cloud, name))
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
    # "If rotation_period is set, next_rotation_time must also be set" (the discovery document).
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
    # Versions are numbered from 1 and never removed, not even when they are destroyed.
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
    """Return the key after the rotations that have become due.

    They happen when the key is looked at, not when they are due: nothing can tell the difference,
    and a clock that was set ahead makes all of them.
    """
    with cloud.store.locked():
        now = cloud.clock.now()
        while (due := optional_seconds_of(key.get("nextRotationTime"))) and due <= now:
            period = float(key["rotationPeriod"][:-1])
            key["nextRotationTime"] = rfc3339(due + period)
            _add_version(cloud, key, primary=True)
    return key


def _load_version(cloud: Cloud, name: str) -> Record:
    """Return the version as it stands now: one whose time has come is destroyed, its secret gone.

    Raises ApiError: 404 when there is none.
    """
    with cloud.store.locked():
        record = _VERSION.find(cloud, name)
        end = optional_seconds_of(record.get("destroyTime"))
        if record["state"] == "DESTROY_SCHEDULED" and end and end <= cloud.clock.now():
            record |= {"state": "DESTROYED", "destroyEventTime": record.pop("destroyTime")}
            record.pop("_secret", None)
            cloud.store.put(VERSION, name, record)
    return record


@VERSIONS.method("create")
def create_version(cloud: Cloud, call: Call) -> Json:
    """Create a version, which is not the primary one yet.

    A rotation by hand is this and `updatePrimaryVersion`; neither moves `next_rotation_time`, as
    the discovery document says.
    """
    with cloud.store.locked():
        return public(_add_version(cloud, _KEY.load(cloud, call), primary=False))


@VERSIONS.method("list")
def list_versions(cloud: Cloud, call: Call) -> Json:
    """Return the versions of a key, which rotations that are due make before."""
    _rotated(cloud, _KEY.load(cloud, call))
    names = cloud.store.keys(VERSION, _VERSION.prefix(call))
    found = [public(_load_version(cloud, name)) for name in names]
    return page(call, "cryptoKeyVersions", found) | {"totalSize": len(found)}


@VERSIONS.method("patch", verb="update")
def patch_version(cloud: Cloud, call: Call) -> Json:
    """Enable or disable a version.

    The other states have methods of their own, `destroy` and `restore`.
    """
    state = call.body.get("state")
    if call.arg("updateMask") != "state" or state not in ("ENABLED", "DISABLED"):
        raise invalid("Only a version's state can be changed, to ENABLED or DISABLED.")
    return _moved(cloud, call, ("ENABLED", "DISABLED"), {"state": state})


@VERSIONS.method("destroy")
def destroy_version(cloud: Cloud, call: Call) -> Json:
    """Schedule a version for destruction; until then it can be restored, and not used.

    The time comes from the key, which keeps what it was created with: the field is immutable.
    """
    wait = _KEY.load(cloud, call)["destroyScheduledDuration"]
    end = rfc3339(cloud.clock.now() + float(wait[:-1]))
    change = {"state": "DESTROY_SCHEDULED", "destroyTime": end}
    return _moved(cloud, call, ("ENABLED", "DISABLED"), change)


@VERSIONS.method("restore")
def restore_version(cloud: Cloud, call: Call) -> Json:
    """Cancel the destruction; the version is disabled then.

    Google leaves it to a second call to let it encrypt: "state will be set to DISABLED, and
    destroy_time will be cleared".
    """
    return _moved(cloud, call, ("DESTROY_SCHEDULED",), {"state": "DISABLED"})


# A state that a method does not start from is refused, which also tells a client that repeats a
# call.
def _moved(cloud: Cloud, call: Call, from_: tuple[str, ...], change: Json) -> Json:
    name = _VERSION.name(call)
    with cloud.store.locked():
        record = _load_version(cloud, name)
        if record["state"] not in from_:
            message = f"{name} is in state {record['state']}, which must be {' or '.join(from_)}."
            raise failed_precondition(message)
        record.pop("destroyTime", None)
        record |= change
        cloud.store.put(VERSION, name, record)
    return public(record)


def primary(cloud: Cloud, key: str) -> Record:
    """Return the version that encrypts.

    Raises ApiError: 404 for a key that is not there, 400 when it has no enabled primary version.
    """
    record = _rotated(cloud, _KEY.find(cloud, key))
    if "_primary" not in record:
        message = f"{key} has no primary version."
        raise ApiError(400, message, status="FAILED_PRECONDITION", reason="keyDisabled")
    return enabled(cloud, record["_primary"])


def enabled(cloud: Cloud, version: str) -> Record:
    """Return a version that can be used; 400 when it is disabled or destroyed."""
    record = _load_version(cloud, version)
    if record["state"] != "ENABLED":
        raise failed_precondition(f"{version} is not enabled, current state is: {record['state']}.")
    return record


def may_use(cloud: Cloud, member: str, key: str, permission: str) -> bool:
    """Return whether `member` may encrypt or decrypt with a key.

    Cloud Storage asks for its own agent, not for the caller: users of an encrypted bucket need no
    right on its key.
    """
    return access.has(cloud, Principal(member), permission, levels(key))


@API.method(f"{KEYS.path}.encrypt", permission=ENCRYPT, resources=resources)
def encrypt(cloud: Cloud, call: Call) -> Json:
    """Encrypt with the primary version.

    Checksums are optional in the request; the answer says which of them were checked, so that a
    client sees that its own one arrived.
    """
    version = primary(cloud, _KEY.name(call))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    number = int(version["name"].rpartition("/")[2])
    plain, extra = _sent(call, "plaintext"), _sent(call, _EXTRA)
    # The version's number comes first: a caller who decrypts names the key alone.
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
    """Decrypt with the version that encrypted.

    It need not be the primary one any longer, but it must be enabled.
    """
    sealed, extra = _sent(call, "ciphertext"), _sent(call, _EXTRA)
    number, nonce = int.from_bytes(sealed[:4], "big"), sealed[4 : 4 + _NONCE_BYTES]
    name = f"{_KEY.name(call)}/cryptoKeyVersions/{number}"
    version = enabled(cloud, name)
    try:
        plain = _cipher(version).decrypt(nonce, sealed[4 + _NONCE_BYTES :], extra)
    except (InvalidTag, ValueError):
        raise invalid("Decryption failed: the ciphertext is invalid.") from None
    return {
        "plaintext": base64.b64encode(plain).decode(),
        "plaintextCrc32c": str(google_crc32c.value(plain)),
        "usedPrimary": _rotated(cloud, _KEY.load(cloud, call)).get("_primary") == name,
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
