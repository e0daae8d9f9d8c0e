"""Finds the users of a resource, which keep it from being deleted."""

from __future__ import annotations

import re
from itertools import chain

from localcloud.core.cloud import Cloud, Hook
from localcloud.core.errors import ApiError
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import url_of

finders: Hook[[Cloud, str], list[str]] = Hook()
"""Finds the users, in other APIs, of the compute resource at a path."""


def users(cloud: Cloud, path: str) -> list[str]:
    """Return paths of the resources that refer to the one at `path`."""
    # A Shared VPC's networks have users in other projects.
    shared = path.split("/")[-2] in ("networks", "subnetworks")
    within = "projects/" if shared else "/".join(path.split("/")[:2]) + "/"
    mentioning = cloud.store.mentioning(STORE, within, url_of(path))
    found = [other for other in mentioning if other != path]
    return found + list(chain.from_iterable(finders.run(cloud, path)))


def holders(cloud: Cloud, path: str) -> list[str]:
    """Return the users that keep the resource at `path` from being deleted or written to."""
    if path.split("/")[-2] == "snapshots":
        return []  # A disk does not need the snapshot that it was made from.
    return [user for user in users(cloud, path) if not _needs_nothing(cloud, user)]


def require_unused(cloud: Cloud, path: str) -> None:
    """Refuse to delete a resource that another one uses."""
    used_by = holders(cloud, path)
    if used_by:
        raise in_use(path, used_by[0])


def in_use(path: str, user: str) -> ApiError:
    """Return the 400 for a resource that `user` uses."""
    kind = path.split("/")[-2].removesuffix("s").replace("addresse", "address")
    kind = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", kind)
    return ApiError(
        400,
        f"The {kind} resource '{path}' is already being used by '{user}'",
        reason="resourceInUseByAnotherResource",
    )


def _needs_nothing(cloud: Cloud, path: str) -> bool:
    # Routes and the subnets of an auto mode network go with what they belong to; a network lists
    # its subnets without needing them; a template only names what an instance of it will need; a
    # snapshot only names what it was made of.
    record = cloud.store.get(STORE, path) or {}
    collection = path.split("/")[-2]
    alone = ("routes", "networks", "instanceTemplates", "snapshots")
    return collection in alone or bool(record.get("_automatic"))
