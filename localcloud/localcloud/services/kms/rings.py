"""Key rings. Like Google's, they can be made and never deleted."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services import iam_policy
from localcloud.services.kms.api import API, RING, RINGS, check_id, load, location, ring_name
from localcloud.services.paging import page


@API.method("projects.locations.keyRings.create", permission="cloudkms.keyRings.create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a key ring."""
    check_id("keyRingId", call.arg("keyRingId"))
    name = f"{location(call)}/keyRings/{call.arg('keyRingId')}"
    record = {"name": name, "createTime": rfc3339(cloud.clock.now())}
    cloud.store.add(RING, name, record, ApiError(409, f"KeyRing {name} already exists."))
    return record


@RINGS.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one key ring."""
    return load(cloud, RING, ring_name(call))


iam_policy.serve(RINGS, lambda cloud, call: str(load(cloud, RING, ring_name(call))["name"]))


@API.method("projects.locations.keyRings.list", permission="cloudkms.keyRings.list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the key rings of a location."""
    found = [record for _, record in cloud.store.items(RING, f"{location(call)}/")]
    return page(call, "keyRings", found) | {"totalSize": len(found)}
