"""Tokens of identity providers: JSON Web Tokens signed with RS256."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from localcloud.core.call import Json


class BadToken(Exception):
    """A token that is malformed or that none of the issuer's keys has signed."""


def claims(token: str, keys: list[Json]) -> dict[str, Any]:
    """Return what a token says, once its signature was checked.

    Args:
        token: three parts in base64, joined by dots.
        keys: of the issuer, as in a JSON Web Key Set (RFC 7517).

    Raises:
        BadToken: saying why.
    """
    try:
        head, payload, signature = token.split(".")
        header, said = (json.loads(_decoded(part)) for part in (head, payload))
        signed = _decoded(signature)
    except ValueError:
        raise BadToken("it is no JSON Web Token") from None
    if header.get("alg") != "RS256":
        raise BadToken(f"its algorithm is {header.get('alg')}, not RS256")
    for key in keys:
        if header.get("kid") in (None, key.get("kid")) and _signs(key, f"{head}.{payload}", signed):
            result: dict[str, Any] = said
            return result
    raise BadToken("none of the issuer's keys has signed it")


def _signs(key: Json, text: str, signature: bytes) -> bool:
    modulus, exponent = (int.from_bytes(_decoded(key[part]), "big") for part in ("n", "e"))
    try:
        public = RSAPublicNumbers(exponent, modulus).public_key()
        public.verify(signature, text.encode(), PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
