"""Encryption and decryption with keys, for callers of the API and for other services."""

from __future__ import annotations

import base64
import secrets

import google_crc32c
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
_EXTRA = "additionalAuthenticatedData"
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
    plain, extra = _texts(call, "plaintext")
    sealed = number.to_bytes(4, "big") + nonce + _cipher(version).encrypt(nonce, plain, extra)
    return {
        "name": version["name"],
        "ciphertext": base64.b64encode(sealed).decode(),
        "ciphertextCrc32c": str(google_crc32c.value(sealed)),
        "verifiedPlaintextCrc32c": "plaintextCrc32c" in call.body,
        "verifiedAdditionalAuthenticatedDataCrc32c": f"{_EXTRA}Crc32c" in call.body,
        "protectionLevel": version["protectionLevel"],
    }


@API.method(f"{_KEYS}.decrypt", permission=DECRYPT, resources=resources)
def decrypt(cloud: Cloud, call: Call) -> Json:
    """Decrypt with the version that encrypted."""
    sealed, extra = _texts(call, "ciphertext")
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
        "usedPrimary": rotated(cloud, load(cloud, KEY, key_name(call))).get("_primary") == name,
        "protectionLevel": version["protectionLevel"],
    }


def _cipher(version: Record) -> AESGCM:
    return AESGCM(bytes.fromhex(version["_secret"]))


def _texts(call: Call, field: str) -> tuple[bytes, bytes]:
    """Return the text and the data that is authenticated with it."""
    return _sent(call, field), _sent(call, _EXTRA)


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
