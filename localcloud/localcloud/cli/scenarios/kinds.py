"""The faults that a scenario's event can have: what each is told, and how it is put in force."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from localcloud.admin import settings
from localcloud.core.cloud import Fault

Ask = Callable[[str, str, dict[str, Any]], dict[str, Any]]
"""(verb, name, what to send) -> the emulator's answer; raises CommandError."""
Lift = Callable[[], object]
"""Ends what was put in force."""


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        check: what is wrong with the fault's value, one sentence each.
        put: puts it in force and returns what ends it.
        lasts: whether it has an end; what doesn't, happens at once, and `for` makes no sense.
    """

    check: Callable[[Any], list[str]]
    put: Callable[[Ask, Any], Lift]
    lasts: bool = False


def _text(value: Any) -> list[str]:
    return [] if isinstance(value, str) and value else [f"expected a name, not {value!r}"]


def _seconds(value: Any) -> list[str]:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return [] if good else [f"expected seconds above 0, not {value!r}"]


def _nothing() -> None:
    """Leave as it is what can't be taken back."""


def _break(ask: Ask, value: Any, what: str, *, both: bool = False) -> Lift:
    ask("POST", "break", {"what": what, "name": value, "on": True})
    if not both:
        return _nothing
    return lambda: ask("POST", "break", {"what": what, "name": value, "on": False})


def _fields(value: Any, wanted: dict[str, type], least: set[str]) -> list[str]:
    """Return what is wrong with a mapping's names and types."""
    if not isinstance(value, dict):
        return [f"expected {', '.join(sorted(least))}, not {value!r}"]
    found = [f"unknown {name!r}, known: {', '.join(wanted)}" for name in value.keys() - wanted]
    found += [f"{name} is missing" for name in sorted(least - value.keys())]
    for name in sorted(value.keys() & wanted):
        good = (float, int) if wanted[name] is float else (wanted[name],)
        if type(value[name]) not in good:
            found.append(f"{name}: {value[name]!r} is no {wanted[name].__name__}")
    return sorted(found)


_TYPES = {"str": str, "int": int, "float": float, "bool": bool}
_FAULT = {field.name: _TYPES[str(field.type)] for field in fields(Fault)}


def _check_error(value: Any) -> list[str]:
    found = _fields(value, _FAULT, {"method"})
    return found or Fault(**value).problems()


def _check_slow(value: Any) -> list[str]:
    known = {name: kind for name, kind in _FAULT.items() if name != "carried_out"}
    if found := _fields(value, {**known, "seconds": float}, {"method", "seconds"}):
        return found
    return _seconds(value["seconds"])


def _put_error(ask: Ask, value: Any) -> Lift:
    key = ask("POST", "faults", value)["id"]
    return lambda: ask("DELETE", "fault", {"id": key})


def _put_slow(ask: Ask, value: Any) -> Lift:
    rest = {name: part for name, part in value.items() if name != "seconds"}
    return _put_error(ask, {**rest, "status": 0, "delay": value["seconds"]})


def _check_kill(value: Any) -> list[str]:
    if found := _fields(value, {"machine": str, "process": str}, {"machine", "process"}):
        return found
    try:
        re.compile(value["process"])
    except re.error as error:
        return [f"process: {value['process']!r} is no regular expression: {error}"]
    return []


def _put_kill(ask: Ask, value: Any) -> Lift:
    sent = {"what": "kill", "name": value["machine"], "process": value["process"]}
    ask("POST", "break", sent)
    return _nothing


def _check_stockout(value: Any) -> list[str]:
    found = _fields(value, {"zone": str, "types": list}, {"zone", "types"})
    return found or settings.problems("stockout", {value["zone"]: value["types"]})


def _put_stockout(ask: Ask, value: Any) -> Lift:
    return _set(ask, "stockout", value["zone"], value["types"])


def _check_quota(value: Any) -> list[str]:
    found = _fields(value, {"metric": str, "limit": int}, {"metric", "limit"})
    return found or settings.problems("quota", {value["metric"]: value["limit"]})


def _put_quota(ask: Ask, value: Any) -> Lift:
    return _set(ask, "quota", value["metric"], value["limit"])


def _set(ask: Ask, name: str, part: str, value: Any) -> Lift:
    ask("POST", "setting", {"name": name, "value": {part: value}})
    return lambda: ask("DELETE", "setting", {"name": name, "part": part})


def _put_clock(ask: Ask, value: Any) -> Lift:
    ask("POST", "forward", {"seconds": value})
    return _nothing


KINDS = {
    "preempt": Kind(_text, partial(_break, what="preempt")),
    "dead": Kind(_text, partial(_break, what="dead")),
    "hang": Kind(_text, partial(_break, what="hang", both=True), lasts=True),
    "kill": Kind(_check_kill, _put_kill),
    "full-disk": Kind(_text, partial(_break, what="full-disk", both=True), lasts=True),
    "error": Kind(_check_error, _put_error, lasts=True),
    "slow": Kind(_check_slow, _put_slow, lasts=True),
    "stockout": Kind(_check_stockout, _put_stockout, lasts=True),
    "quota": Kind(_check_quota, _put_quota, lasts=True),
    "expire-tokens": Kind(_text, partial(_break, what="expire-tokens")),
    "clock": Kind(_seconds, _put_clock),
    "delete-objects": Kind(_text, partial(_break, what="delete-objects")),
}
