"""Looks a stack's TPUs up in the zones that they may be in: the agent may have moved them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from tpustack.cloud.google import Google, NotFound

_NODES = "https://tpu.googleapis.com/v2/projects/{}/locations/{}/nodes"


class Nodes:
    """The TPUs of a project; each zone is listed once, when it is first asked for."""

    def __init__(self, google: Google, project: str) -> None:
        self._of = cache(partial(_listed, google, project))

    def find(self, zones: Iterable[str], name: str) -> tuple[str, dict[str, Any]] | None:
        """Return the zone of a TPU, and the TPU, from the first of these zones that has it.

        Raises:
            TpustackError: when nobody may look, with the API's own message.
        """
        there = ((zone, self._of(zone).get(name)) for zone in zones)
        return next(((zone, node) for zone, node in there if node), None)


def _listed(google: Google, project: str, zone: str) -> dict[str, dict[str, Any]]:
    with suppress(NotFound):
        nodes = google.pages(_NODES.format(project, zone), "nodes")
        return {node["name"].rpartition("/")[2]: node for node in nodes}
    return {}


def look_up(google: Google, outputs: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return the zone of a TPU, and the TPU.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/outputs.py names them.
        name: the TPU's.

    Raises:
        NotFound: when it is in none of the zones.
        TpustackError: when nobody may look, with the API's own message.
    """
    *first, last = zones_of(outputs)
    for zone in first:
        with suppress(NotFound):
            return zone, google.get(f"{_NODES.format(outputs['project'], zone)}/{name}")
    return last, google.get(f"{_NODES.format(outputs['project'], last)}/{name}")


def zones_of(outputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the zones that a stack's TPUs may be in, by its outputs."""
    return tuple(dict.fromkeys((outputs["tpu_zone"], *outputs.get("tpu_zones", ()))))
