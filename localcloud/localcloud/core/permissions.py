"""Which permissions Google has, as far as data/permissions.yaml knows them."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from functools import lru_cache

from localcloud.core import data

log = logging.getLogger(__name__)
_PROJECTS = "resourcemanager"


@lru_cache(maxsize=1)
def known() -> frozenset[str]:
    """Return the permissions of the resource types that are known in full."""
    types: dict[str, list[str]] = data.load("permissions")["types"]
    return frozenset(f"{kind}.{verb}" for kind, verbs in types.items() for verb in verbs)


def counts(name: str, service: str = _PROJECTS) -> bool:
    """Return whether Google has a permission that can count on a service's resource.

    A project takes those of all services. That others take their own alone is our own word.
    """
    above = data.load("permissions")["above"].get(service, ())
    if any(fnmatchcase(name, pattern) for pattern in above):
        return False
    return (service == _PROJECTS or name.startswith(f"{service}.")) and _exists(name)


def _exists(name: str) -> bool:
    """Return whether Google has a permission; where only its resource type is known, say so."""
    if name in known():
        return True
    facts = data.load("permissions")
    # Some are in the name of an API: iam.googleapis.com/workloadIdentityPools.get.
    service, _, rest = name.partition("/" if "/" in name else ".")
    kind, _, verb = rest.partition(".")
    there = service in facts["services"] or kind in facts["others"].get(service, ())
    taken = there and kind.isalnum() and verb.isalnum()
    if taken:
        log.warning("%s is taken for a permission of Google's: the local cloud can't tell", name)
    return taken
