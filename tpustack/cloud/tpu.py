"""Looks a stack's TPUs up in the zones that they may be in: the agent may have moved them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from tpustack.cloud.google import Google, NotFound

_NODE = "https://tpu.googleapis.com/v2/projects/{}/locations/{}/nodes/{}"


def look_up(google: Google, outputs: Mapping[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return the zone of a TPU, and the TPU.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/outputs.py names them; earlier releases had only one zone.
        name: the TPU's.

    Raises:
        NotFound: when it is in none of the zones.
        TpustackError: when nobody may look, with the API's own message.
    """
    zones = (outputs["tpu_zone"], *outputs.get("tpu_zones", ()))
    return find(google, outputs["project"], zones, name)


def find(
    google: Google, project: str, zones: Iterable[str], name: str
) -> tuple[str, dict[str, Any]]:
    """Return the zone of a TPU, and the TPU, from the first of these zones that has it.

    Raises:
        NotFound: when it is in none of them.
        TpustackError: when nobody may look, with the API's own message.
    """
    *first, last = dict.fromkeys(zones)
    for zone in first:
        with suppress(NotFound):
            return zone, google.get(_NODE.format(project, zone, name))
    return last, google.get(_NODE.format(project, last, name))
