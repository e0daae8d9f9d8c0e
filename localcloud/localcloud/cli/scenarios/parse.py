"""Read a scenario file and check all of it before anything happens."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from localcloud.cli.scenarios.kinds import KINDS

LATEST = 7 * 24 * 3600.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# As in Compose files: such keys are for other programs that read the file.
_OTHERS = "x-"
_TIMES = ("at", "when", "after", "for")


class ScenarioError(Exception):
    """All that is wrong with a scenario, a line each."""


@dataclass(frozen=True)
class Event:
    """One thing that goes wrong.

    Attributes:
        kind: such as `preempt`.
        value: what exactly, as the kind takes it.
        at: seconds after the start, or after what `serial` or `found` waits for.
        lasts: seconds until it is lifted; None: for good.
        serial: machine whose serial port is watched, and the regular expression that it must say.
        found: pattern of the object in a bucket, BUCKET/NAME, that must be there.
    """

    kind: str
    value: Any
    at: float = 0.0
    lasts: float | None = None
    serial: tuple[str, str] | None = None
    found: str | None = None

    def __str__(self) -> str:
        value = self.value
        if isinstance(value, dict):
            value = ", ".join(f"{name} {part}" for name, part in value.items())
        return f"{self.kind}{'' if value is True else f' {value}'}"


def read(path: Path) -> list[Event]:
    """Return a file's events.

    Raises:
        ScenarioError: naming everything that is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ScenarioError(f"{path}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("events"), list):
        raise ScenarioError(f"{path}: expected a list under `events`")
    own = (name for name in content if not str(name).startswith(_OTHERS))
    wrong = [f"unknown {name!r}; there is `events`" for name in own if name != "events"]
    events = []
    for number, raw in enumerate(content["events"], 1):
        event, problems = _event(raw)
        wrong += [f"event {number}: {problem}" for problem in problems]
        events += [event] if event else []
    if wrong:
        raise ScenarioError("\n".join(f"{path}: {problem}" for problem in wrong))
    return events


def _event(raw: Any) -> tuple[Event | None, list[str]]:
    if not isinstance(raw, dict):
        return None, [f"expected a time and a fault, not {raw!r}"]
    wrong = _check_times(raw)
    kinds = [str(name) for name in raw if name not in _TIMES]
    wrong += [_unknown(name) for name in kinds if name not in KINDS]
    if len(kinds) != 1:
        wrong.append(f"expected one fault, found {', '.join(kinds) or 'none'}")
    if wrong or kinds[0] not in KINDS:
        return None, wrong + _values(raw)
    [name] = kinds
    if wrong := _values(raw):
        return None, wrong
    when = raw.get("when", {})
    start, lasts = raw.get("at", raw.get("after", 0)), raw.get("for")
    serial = (when["serial"], when["says"]) if "serial" in when else None
    event = Event(
        kind=name,
        value=raw[name],
        at=seconds(start),
        lasts=None if lasts is None else seconds(lasts),
        serial=serial,
        found=when.get("object"),
    )
    return event, []


def _values(raw: dict[str, Any]) -> list[str]:
    """Return what is wrong with the values of known faults."""
    found = []
    for name in raw.keys() & KINDS.keys():
        found += [f"{name}: {problem}" for problem in KINDS[name].check(raw[name])]
        if "for" in raw and not KINDS[name].lasts:
            found.append(f"for: {name} happens at once and has no end")
    return found


def _check_times(raw: dict[str, Any]) -> list[str]:
    wrong = []
    if ("at" in raw) == ("when" in raw):
        wrong.append("expected either `at` or `when`")
    if "after" in raw and "when" not in raw:
        wrong.append("after: it goes with `when`; the time since the start is `at`")
    for name in ("at", "after", "for"):
        if name in raw:
            wrong += [f"{name}: {problem}" for problem in _time(raw[name], zero=name != "for")]
    return wrong + (_check_when(raw["when"]) if "when" in raw else [])


def _time(value: Any, *, zero: bool) -> list[str]:
    try:
        number = seconds(value)
    except ValueError:
        return [f"{value!r} is no time; write seconds, or 90s, 5m, 2h"]
    if number < 0 or (number == 0 and not zero):
        return [f"{value!r} is not {'0 or more' if zero else 'above 0'}"]
    return [f"{value!r} is later than a week"] if number > LATEST else []


def _check_when(when: Any) -> list[str]:
    names = {"serial", "says"}, {"object"}
    texts = isinstance(when, dict) and all(isinstance(text, str) for text in when.values())
    if not texts or set(when) not in names:
        return [f"when: expected `serial` and `says`, or `object`, each a text, not {when!r}"]
    if "says" in when:
        try:
            re.compile(when["says"])
        except re.error as error:
            return [f"says: {when['says']!r} is no regular expression: {error}"]
    return []


def seconds(value: Any) -> float:
    """Return the seconds that a time such as 90, `90s`, `5m` or `2h` stands for.

    Raises:
        ValueError: when it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    match = re.fullmatch(r"(-?[\d.]+)\s*([smh]?)", str(value))
    if match is None or not math.isfinite(number := float(match[1])):
        raise ValueError
    return number * _UNITS[match[2]]


def _unknown(name: str) -> str:
    near = get_close_matches(name, KINDS, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown fault {name!r}{hint}. Known: {', '.join(KINDS)}"
