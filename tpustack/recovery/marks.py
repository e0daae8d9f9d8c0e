"""Tells what a killed update made from what another stack made under the same name.

The state has the mark that the update was about to make a resource with (infra/names.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.names import MARK
from tpustack.recovery.ids import id_of

Resource = Mapping[str, Any]
Deployment = Mapping[str, Any]


def without_others(before: Deployment, refreshed: Deployment) -> tuple[dict[str, Any], list[str]]:
    """Return a refreshed state without what other stacks made, and the URNs of that.

    Args:
        before: the state as the killed engine left it.
        refreshed: the state in which all that was being created is assumed to be there.
    """
    known = {_key(each) for each in before.get("resources") or []}
    wanted = {
        (each["resource"]["urn"], id_of(each["resource"])): each["resource"]
        for each in before.get("pending_operations") or []
        if each["type"] == "creating"
    }
    others = [
        each
        for each in refreshed.get("resources") or []
        if _key(each) not in known and _key(each) in wanted
        if _mark(wanted[_key(each)].get("inputs")) not in (None, _mark(each.get("outputs")))
    ]
    kept = [each for each in refreshed.get("resources") or [] if each not in others]
    return {**refreshed, "resources": kept}, [each["urn"] for each in others]


def _key(resource: Resource) -> tuple[str, str | None]:
    return resource["urn"], resource.get("id")


def _mark(properties: Mapping[str, Any] | None) -> str | None:
    """Return the mark; None for what has none: earlier releases made it, or it needs none."""
    if not properties:
        return None
    label: str | None = (properties.get("labels") or {}).get(MARK)
    return label or properties.get("description")
