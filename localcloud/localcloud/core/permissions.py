"""Which permissions Google has, as far as data/permissions.yaml knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from localcloud.core import data
from localcloud.core.errors import invalid

log = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def known() -> frozenset[str]:
    """Return the permissions of the resource types that are known in full."""
    types: dict[str, list[str]] = _facts()["types"]
    return frozenset(f"{kind}.{verb}" for kind, verbs in types.items() for verb in verbs)


def in_projects(names: Iterable[str]) -> list[str]:
    """Return those that a project can be tested for, and a role of it can include."""
    return [name for name in names if not _among(name, "aboveProjects")]


def require_in_role(names: Iterable[str]) -> None:
    """Refuse what a project's role can't include.

    Raises:
        ApiError: 400, in the words of github.com/hashicorp/terraform-provider-google/issues/14033.
    """
    wrong = sorted(name for name in names if not _exists(name) or _among(name, "aboveProjects"))
    if wrong:
        raise invalid(f"Permission {', '.join(wrong)} is not valid.")


def require_testable(names: Iterable[str], service: str) -> None:
    """Refuse what a resource of a service can't be tested for.

    That Google refuses those of other services, but for projects, is our own word.

    Raises:
        ApiError: 400, in the words that Google has for projects.
    """
    for name in names:
        of_project = service == "resourcemanager"
        foreign = not of_project and not name.startswith(f"{service}.")
        above = _among(name, "aboveProjects" if of_project else "aboveBuckets")
        if foreign or above or not _exists(name):
            raise invalid(f"Permission {name} is not valid for this resource.")


def _exists(name: str) -> bool:
    """Return whether Google has a permission; where only its resource type is known, say so."""
    if name in known():
        return True
    # Some are in the name of an API: iam.googleapis.com/workloadIdentityPools.get.
    service, _, rest = name.partition("/" if "/" in name else ".")
    kind, _, verb = rest.partition(".")
    if not (kind.isalnum() and verb.isalnum()):
        return False
    if service not in _facts()["services"] and kind not in _facts()["others"].get(service, ()):
        return False
    log.warning("%s is taken for a permission of Google's: the local cloud can't tell", name)
    return True


def _among(name: str, list_: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _facts()[list_])


def _facts() -> Any:
    return data.load("permissions")
