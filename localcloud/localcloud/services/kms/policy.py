"""IAM policies of key rings and keys."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.services import policies
from localcloud.services.kms.api import API, KEY, RING, key_name, load, resources, ring_name

_RINGS = "projects.locations.keyRings"
_KEYS = "projects.locations.keyRings.cryptoKeys"


def _target(cloud: Cloud, call: Call) -> str:
    """The full name of the ring or key, which must be there."""
    if "cryptoKeysId" in call.params:
        return str(load(cloud, KEY, key_name(call))["name"])
    return str(load(cloud, RING, ring_name(call))["name"])


@API.method(
    f"{_RINGS}.getIamPolicy", permission="cloudkms.keyRings.getIamPolicy", resources=resources
)
@API.method(
    f"{_KEYS}.getIamPolicy", permission="cloudkms.cryptoKeys.getIamPolicy", resources=resources
)
def get(cloud: Cloud, call: Call) -> Json:
    """The policy."""
    return policies.read(cloud, _target(cloud, call))


@API.method(
    f"{_RINGS}.setIamPolicy", permission="cloudkms.keyRings.setIamPolicy", resources=resources
)
@API.method(
    f"{_KEYS}.setIamPolicy", permission="cloudkms.cryptoKeys.setIamPolicy", resources=resources
)
def set_(cloud: Cloud, call: Call) -> Json:
    """Replace the policy."""
    return policies.write(cloud, _target(cloud, call), call.body)


@API.method(f"{_RINGS}.testIamPermissions", f"{_KEYS}.testIamPermissions")
def test(cloud: Cloud, call: Call) -> Json:
    """Which permissions the caller has."""
    return policies.granted(cloud, call.principal, list(resources(cloud, call)), call.body)
