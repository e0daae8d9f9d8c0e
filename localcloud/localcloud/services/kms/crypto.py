"""Encryption and decryption with keys, for callers of the API and for other services."""

from __future__ import annotations

import base64
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, failed_precondition, invalid
from localcloud.core.store import Record
from localcloud.core.tokens import Principal
from localcloud.services.kms.api import API, KEY, key_name, levels, load, resources
from localcloud.services.kms.versions import load_current, rotated

_KEYS = "projects.locations.keyRings.cryptoKeys"
_NONCE_BYTES = 12
ENCRYPT = "cloudkms.cryptoKeyVersions.useToEncrypt"
DECRYPT = "cloudkms.cryptoKeyVersions.useToDecrypt"


def primary(cloud: Cloud, key: str) -> Record:
    """Return the version that encrypts.

    Raises:
        ApiError: 404 for a key that is not there, 400 when it has no enabled primary version.
    """
    record = rotated(cloud, load(cloud, KEY, key))
    if "_primary" not in record:
        raise ApiError(
            400,
            f"{key} has no primary version.",
            status="FAILED_PRECONDITION",
            reason="keyDisabled",
        )
    return enabled(cloud, record["_primary"])


def enabled(cloud: Cloud, version: str) -> Record:
    """Return a version that can be used.

    Raises:
        ApiError: 400 when it is disabled or destroyed.
    """
    record = load_current(cloud, version)
    if record["state"] != "ENABLED":
        raise failed_precondition(f"{version} is not enabled, current state is: {record['state']}.")
    return record


def may_use(cloud: Cloud, member: str, key: str, permission: str) -> bool:
    """Return whether `member` may encrypt or decrypt with a key."""
    return access.has(cloud, Principal(member), permission, levels(key))


@API.method(f"{_KEYS}.encrypt", permission=ENCRYPT, resources=resources)
def encrypt(cloud: Cloud, call: Call) -> Json:
    """Encrypt with the primary version."""
    version = primary(cloud, key_name(call))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    number = int(version["name"].rpartition("/")[2])
    sealed = _cipher(version).encrypt(nonce, *_texts(call, "plaintext"))
    return {
        "name": version["name"],
        "ciphertext": base64.b64encode(number.to_bytes(4, "big") + nonce + sealed).decode(),
        "protectionLevel": version["protectionLevel"],
    }


@API.method(f"{_KEYS}.decrypt", permission=DECRYPT, resources=resources)
def decrypt(cloud: Cloud, call: Call) -> Json:
    """Decrypt with the version that encrypted."""
    sealed, extra = _texts(call, "ciphertext")
    number, nonce = int.from_bytes(sealed[:4], "big"), sealed[4 : 4 + _NONCE_BYTES]
    name = f"{key_name(call)}/cryptoKeyVersions/{number}"
    try:
        plain = _cipher(enabled(cloud, name)).decrypt(nonce, sealed[4 + _NONCE_BYTES :], extra)
    except (InvalidTag, ValueError):
        raise invalid("Decryption failed: the ciphertext is invalid.") from None
    return {"plaintext": base64.b64encode(plain).decode()}


def _cipher(version: Record) -> AESGCM:
    return AESGCM(bytes.fromhex(version["_secret"]))


def _texts(call: Call, field: str) -> tuple[bytes, bytes]:
    """Return the text and the data that is authenticated with it."""
    sent = (call.body.get(field, ""), call.body.get("additionalAuthenticatedData", ""))
    try:
        text, extra = (base64.b64decode(part, validate=True) for part in sent)
    except ValueError:
        raise invalid(f"{field} is not base64.") from None
    return text, extra
