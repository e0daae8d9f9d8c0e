"""The zones that a request may be in: the stack's own first, then those that it names beside it.

Its ID names the first one, wherever it is: so the state stays the same when the agent moves it
(agent/), and a state of before knows what to delete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.queued.api import TpuApi
from infra.queued.state import entry_name
from infra.rest import Json
from tpu_core.contract import MARK
from tpu_core.tpu import labels_of

Props = Mapping[str, Any]


def zones_of(props: Props) -> list[str]:
    """Return all zones in the order in which they are tried."""
    return [props["zone"], *props.get("fallbackZones", ())]


def may_move(props: Props) -> bool:
    """Return whether the request may be in another zone than the first."""
    return len(zones_of(props)) > 1


def id_of(props: Props) -> str:
    """Return the ID, which names the first zone."""
    return f"projects/{props['project']}/locations/{props['zone']}/queuedResources/{props['name']}"


def in_each(props: Props) -> Iterator[Props]:
    """Yield the properties for each zone, that where the request was last first."""
    if not may_move(props):
        yield props
        return
    last = props.get("at") or props["zone"]
    for zone in dict.fromkeys((last, *zones_of(props))):
        yield {**props, "at": zone}


def locate(api: TpuApi, props: Props) -> tuple[Props, Json | None]:
    """Return the properties where the request is, and the request; None if it is nowhere.

    In a zone to which it may have moved, one of the same name counts only with this stack's mark.
    """
    for there in in_each(props):
        entry = api.get(entry_name(there))
        if entry is not None and (not may_move(props) or _is_ours(props, entry)):
            return there, entry
    return props, None


def _is_ours(props: Props, entry: Json) -> bool:
    """Return whether it has the stack's mark; who waits for its TPUs knows no mark."""
    mark = props.get("labels", {}).get(MARK)
    return mark is None or labels_of(entry).get(MARK) == mark
