"""IAM policies of key rings and keys."""

from __future__ import annotations

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.services import policies
from localcloud.services.kms.api import KEY, KEYS, RING, RINGS, key_name, load, ring_name


def _ring(cloud: Cloud, call: Call) -> str:
    return str(load(cloud, RING, ring_name(call))["name"])


def _key(cloud: Cloud, call: Call) -> str:
    return str(load(cloud, KEY, key_name(call))["name"])


policies.serve(RINGS, _ring)
policies.serve(KEYS, _key)
