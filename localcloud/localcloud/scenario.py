"""Scenario files: what goes wrong when. Read, check all of it, then play it event by event."""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from localcloud import faults
from localcloud.lifecycle import CommandError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# As in Compose files: such keys are for other programs that read the file.
_OTHERS = "x-"
_TIMES = ("at", "when", "after", "for")
Ask = Callable[[str, str, dict[str, Any]], dict[str, Any]]
"""(verb, name, what to send) -> the emulator's answer; raises CommandError."""
Lift = Callable[[], object]
"""Ends what was put in force."""
Result = TypeVar("Result")
# Seconds between two looks: no event happens more exactly than this.
_LOOK = 0.25
# So long an event waits for what it is to break: a machine that boots, a program that comes back.
_PATIENCE = 60.0
# The exit code of a command that the emulator does not answer; then a scenario has no meaning.
_NOT_RUNNING = 3


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
    for number, raw in enumerate(content["events"], 1):
        wrong += [f"event {number}: {problem}" for problem in _problems(raw)]
    if wrong:
        raise ScenarioError("\n".join(f"{path}: {problem}" for problem in wrong))
    return [_event(raw) for raw in content["events"]]


def _event(raw: dict[str, Any]) -> Event:
    # `_problems` has found exactly one.
    [kind] = raw.keys() - {*_TIMES}
    when, lasts = raw.get("when", {}), raw.get("for")
    return Event(
        kind=kind,
        value=raw[kind],
        at=_seconds(raw.get("at", raw.get("after", 0))),
        lasts=None if lasts is None else _seconds(lasts),
        serial=(when["serial"], when["says"]) if "serial" in when else None,
        found=when.get("object"),
    )


def _problems(raw: Any) -> list[str]:
    """Return what is wrong with an event, also with several of its parts at once."""
    if not isinstance(raw, dict):
        return [f"expected a time and a fault, not {raw!r}"]
    wrong = []
    if ("at" in raw) == ("when" in raw):
        wrong.append("expected either `at` or `when`")
    if "after" in raw and "when" not in raw:
        wrong.append("after: use it with `when`; for a time since the start use `at`")
    for name in ("at", "after", "for"):
        if name in raw:
            wrong += [f"{name}: {problem}" for problem in _time(raw[name], zero=name != "for")]
    if "when" in raw:
        wrong += _check_when(raw["when"])
    kinds = [str(name) for name in raw if name not in _TIMES]
    if len(kinds) != 1:
        wrong.append(f"expected one fault, found {', '.join(kinds) or 'none'}")
    for name in kinds:
        if name not in KINDS:
            wrong.append(f"unknown fault {name!r}. Known: {', '.join(KINDS)}")
            continue
        wrong += [f"{name}: {problem}" for problem in KINDS[name].check(raw[name])]
        if "for" in raw and not KINDS[name].lasts:
            wrong.append(f"for: {name} has no duration")
    return wrong


def _time(value: Any, *, zero: bool = False) -> list[str]:
    try:
        good = _seconds(value) > 0 or zero
    except ValueError:
        return [f"{value!r} is not a time; write seconds, or 90s, 5m, 2h"]
    return [] if good else [f"{value!r} is not above 0"]


def _check_when(when: Any) -> list[str]:
    texts = isinstance(when, dict) and all(isinstance(text, str) for text in when.values())
    if not texts or set(when) not in ({"serial", "says"}, {"object"}):
        return [f"when: expected `serial` and `says`, or `object`, each a text, not {when!r}"]
    return _check_pattern("says", when.get("says", ""))


def _check_pattern(name: str, text: str) -> list[str]:
    try:
        re.compile(text)
    except re.error as error:
        return [f"{name}: {text!r} is not a regular expression: {error}"]
    return []


def _seconds(value: Any) -> float:
    """Return the seconds that a time such as 90, `90s`, `5m` or `2h` stands for.

    Raises:
        ValueError: for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    match = re.fullmatch(r"([\d.]+)\s*([smh]?)", str(value))
    if match is None:
        raise ValueError
    return float(match[1]) * _UNITS[match[2]]


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


def _check_text(value: Any) -> list[str]:
    return [] if isinstance(value, str) and value else [f"expected a name, not {value!r}"]


def _nothing() -> None:
    """Do nothing: what happens at once can't be taken back."""


def _breaks(what: str, *, lasts: bool = False) -> Kind:
    """Return the fault that breaks a machine or an object by its name."""

    def put(ask: Ask, value: Any) -> Lift:
        def switch(on: bool) -> object:
            return ask("POST", "break", {"what": what, "name": value, "on": on})

        switch(True)
        return partial(switch, False) if lasts else _nothing

    return Kind(_check_text, put, lasts)


def _put_error(ask: Ask, value: Any) -> Lift:
    key = ask("POST", "faults", value)["id"]
    return lambda: ask("DELETE", "fault", {"id": key})


def _check_kill(value: Any) -> list[str]:
    found = faults.field_problems(value, {"machine": str, "process": str})
    return found or _check_pattern("process", value["process"])


def _put_kill(ask: Ask, value: Any) -> Lift:
    ask("POST", "break", {"what": "kill", "name": value["machine"], "process": value["process"]})
    return _nothing


def _put_clock(ask: Ask, value: Any) -> Lift:
    ask("POST", "forward", {"seconds": _seconds(value)})
    return _nothing


def _setting(name: str, key: str, part: str, kind: type) -> Kind:
    """Return the fault that sets one part of a setting, and takes it back in the end."""

    def check(value: Any) -> list[str]:
        found = faults.field_problems(value, {key: str, part: kind})
        return found or faults.setting_problems(name, {value[key]: value[part]})

    def put(ask: Ask, value: Any) -> Lift:
        ask("POST", "setting", {"name": name, "value": {value[key]: value[part]}})
        return lambda: ask("DELETE", "setting", {"name": name, "part": value[key]})

    return Kind(check, put, lasts=True)


KINDS = {
    "preempt": _breaks("preempt"),
    "dead": _breaks("dead"),
    "hang": _breaks("hang", lasts=True),
    "kill": Kind(_check_kill, _put_kill),
    "full-disk": _breaks("full-disk", lasts=True),
    "error": Kind(faults.fault_problems, _put_error, lasts=True),
    "stockout": _setting("stockout", "zone", "types", list),
    "quota": _setting("quota", "metric", "limit", int),
    "expire-tokens": _breaks("expire-tokens"),
    "clock": Kind(_time, _put_clock),
    "delete-objects": _breaks("delete-objects"),
}


@dataclass
class _Planned:
    """An event and what has become of it; `due` and `ends` are by the run's own clock."""

    event: Event
    due: float | None = None
    lift: Lift | None = None
    ends: float = 0.0
    done: bool = False
    problem: str = ""


@dataclass
class _Serial:
    """What a machine has printed since the scenario began."""

    start: int = 0
    rest: str = ""
    lines: list[str] = field(default_factory=list)


class Run:
    """One scenario on a running cloud.

    Args:
        events: what goes wrong.
        ask: calls the emulator.
        time: the module `time`, or a test's with its `monotonic` and `sleep`.
        tell: gets each happening: seconds since the start, what (`happens`, `ends`, `fails`,
            `never`), and the event with what there is to say.
    """

    def __init__(
        self, events: list[Event], ask: Ask, time: Any, tell: Callable[[float, str, str], None]
    ) -> None:
        self._ask, self._time, self._tell = ask, time, tell
        self._began: float = time.monotonic()
        self._planned = [_Planned(event) for event in events]
        self._serials: dict[str, _Serial] = {}
        self.failed = 0
        """Events that could not be put in force or never had their moment."""

    def play(self) -> None:
        """Return when everything has happened and ended; what is in force ends at any rate."""
        try:
            while any(not planned.done for planned in self._planned):
                self.look()
                self._time.sleep(_LOOK)
        finally:
            # The stack calls all of them, also when one fails because the output was closed.
            with contextlib.ExitStack() as ending:
                for planned in reversed(self._planned):
                    if not planned.done:
                        end = self._fail if planned.lift is None else self._lift
                        ending.callback(end, planned)

    def look(self) -> None:
        """Do what is due now."""
        now = self._time.monotonic()
        self._listen()
        for planned in self._planned:
            if planned.done:
                continue
            if planned.lift is not None:
                if now >= planned.ends:
                    self._lift(planned)
                continue
            if planned.due is None and (moment := self._moment(planned.event, now)) is not None:
                planned.due = moment + planned.event.at
            if planned.due is not None and now >= planned.due:
                self._put(planned, now)
        for serial in self._serials.values():
            serial.lines.clear()

    def _moment(self, event: Event, now: float) -> float | None:
        """Return when the time of an event begins to count, or None while it must wait."""
        if event.serial is not None:
            machine, text = event.serial
            matched = any(re.search(text, line) for line in self._serials[machine].lines)
            return now if matched else None
        if event.found is not None:
            return now if self._ask("POST", "objects", {"name": event.found})["objects"] else None
        return self._began

    def _listen(self) -> None:
        """Read on at every serial port that an event waits for, once however many wait."""
        for planned in self._planned:
            if planned.event.serial is None or planned.due is not None or planned.done:
                continue
            machine = planned.event.serial[0]
            serial = self._serials.setdefault(machine, _Serial())
            if serial.lines:
                continue
            # A machine that is missing may still come.
            sent = {"machine": machine, "start": serial.start}
            answer = _unless_gone(None, partial(self._ask, "POST", "serial", sent))
            if answer is not None:
                serial.start = answer["next"]
                *serial.lines, serial.rest = (serial.rest + answer["contents"]).split("\n")

    def _put(self, planned: _Planned, now: float) -> None:
        event, planned.problem = planned.event, ""
        put = partial(KINDS[event.kind].put, self._ask, event.value)
        planned.lift = _unless_gone(planned, put)
        if planned.lift is None:
            if planned.due is None or now >= planned.due + _PATIENCE:
                self._fail(planned)
            return
        self._say("happens", str(event))
        # What has no end stays for good, and doesn't hold the scenario up.
        planned.done = event.lasts is None
        planned.ends = now + (event.lasts or 0.0)

    def _fail(self, planned: _Planned) -> None:
        planned.done, self.failed = True, self.failed + 1
        if planned.problem:
            self._say("fails", f"{planned.event}: {planned.problem}")
        else:
            self._say("never", str(planned.event))

    def _lift(self, planned: _Planned) -> None:
        if planned.lift is not None:
            # What was broken may be gone by now.
            with contextlib.suppress(CommandError):
                planned.lift()
        planned.done = True
        self._say("ends", str(planned.event))

    def _say(self, what: str, text: str) -> None:
        self._tell(round(self._time.monotonic() - self._began, 2), what, text)


def _unless_gone(planned: _Planned | None, do: Callable[[], Result]) -> Result | None:
    """Return what `do` returns, or None if the emulator refuses, and note that as the problem."""
    try:
        return do()
    except CommandError as error:
        if error.exit_code == _NOT_RUNNING:
            raise
        if planned is not None:
            planned.problem = str(error)
    return None
