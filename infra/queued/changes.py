"""The differences between the request in the queue and the one that the program declares."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from infra.queued.state import place
from infra.rest import Json
from tpu_core.contract import MARK
from tpu_core.tpu import in_zone

# Metadata that is no reason for another TPU: it differs between releases, limits and prices.
_NO_REASON = (
    *("startup-script", "tensorflow-lock", "agent", "limits", "cost-note"),
    *("tpu-zones", "messages"),
)


def asked(props: Mapping[str, Any], key: str) -> Any:
    """Return what identifies a request, without what its TPU VM reads only at boot."""
    value = props.get(key)
    if key != "request" or value is None:
        return value
    specs = copy.deepcopy(value["tpu"]["nodeSpec"])
    for spec in specs:
        spec["node"].pop("tags", None)  # They change in place.
        metadata = spec["node"].get("metadata", {})
        for key in _NO_REASON:
            metadata.pop(key, None)
    return {**value, "tpu": {"nodeSpec": specs}}


def why(olds: Mapping[str, Any], news: Mapping[str, Any]) -> str:
    """Say why another request replaces this one."""
    if olds.get("loss"):
        return f"Google takes it up no more ({olds['loss']})"
    changed = sorted(_changes("", _flat(olds), _flat(news)))
    return f"another request is made for another {', '.join(changed)}"


def is_the_same(props: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    """Return whether a request that is there is one that this stack would make.

    It has the stack's mark and all that is asked for; Google may add more.
    """
    spec = (entry.get("tpu", {}).get("nodeSpec") or [{}])[0]
    mark = props["labels"].get(MARK)
    ours = bool(mark) and spec.get("node", {}).get("labels", {}).get(MARK) == mark
    wanted = asked(props, "request")
    return ours and _covers(entry, in_zone(wanted, place(props)) if props.get("at") else wanted)


def _covers(found: Any, wanted: Any) -> bool:
    if found is None and not wanted:
        return True  # Google leaves out what is false or empty.
    if isinstance(wanted, Mapping):
        there = isinstance(found, Mapping)
        return there and all(_covers(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        there = isinstance(found, list) and len(found) == len(wanted)
        return there and all(map(_covers, found, wanted))
    return bool(found == wanted)


def _flat(props: Mapping[str, Any]) -> Json:
    request = asked(props, "request")
    (spec,) = request["tpu"]["nodeSpec"]
    where = {key: props.get(key) for key in ("project", "zone", "name", "fallbackZones")}
    rest = {key: value for key, value in request.items() if key != "tpu"}
    names = {key: value for key, value in spec.items() if key != "node"}
    return {**where, **rest, **names, **spec["node"]}


def _changes(path: str, olds: Json, news: Json) -> set[str]:
    found = set()
    for key in {*olds, *news}:
        old, new = olds.get(key), news.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found |= _changes(f"{path}{key}.", old, new)
        elif old != new:
            found.add(path + key)
    return found
