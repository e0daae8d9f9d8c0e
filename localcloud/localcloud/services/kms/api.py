"""The Cloud KMS API's registration, the names of what it keeps, and whose policies count."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record
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


def location(call: Call) -> str:
    """Return the location in the path, `projects/p/locations/l`.

    Raises:
        ApiError: 404, as Google answers for a location without KMS.
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
    """Refuse an id that no key ring or key can have.

    Raises:
        ApiError: 400.
    """
    if not _ID.fullmatch(value):
        raise invalid(f"{parameter} {value!r} does not match [a-zA-Z0-9_-]{{1,63}}.")


def load(cloud: Cloud, kind: str, name: str) -> Record:
    """Return the stored record; 404 when there is none."""
    return cloud.store.load(kind, name, ApiError(404, f"{_TITLES[kind]} {name} not found."))


_TITLES = {RING: "KeyRing", KEY: "CryptoKey", VERSION: "CryptoKeyVersion"}
