"""Play a scenario: wait for each event's moment, put it in force, lift it when its time is over."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from localcloud.cli.client import CommandError
from localcloud.cli.scenarios.kinds import KINDS, Ask, Lift
from localcloud.cli.scenarios.parse import Event

_LOOK = 0.25
# So long an event waits for what it is to break: a machine that boots, a program that comes back.
_PATIENCE = 60.0


class Time(Protocol):
    """What a scenario needs of the module `time`."""

    def monotonic(self) -> float:
        """Return seconds that only grow."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


@dataclass
class _Planned:
    event: Event
    due: float | None = None
    lift: Lift | None = None
    ends: float = 0.0
    done: bool = False
    problem: str = ""


@dataclass
class _Serial:
    """What a machine has said since the scenario began."""

    start: int = 0
    rest: str = ""
    lines: list[str] = field(default_factory=list)


class Run:
    """One scenario on a running cloud.

    Args:
        events: what goes wrong.
        ask: calls the emulator.
        time: the module `time`, or a test's.
        tell: gets each happening: seconds since the start, what (`happens`, `ends`, `fails`,
            `never`), and the event with what there is to say.
    """

    def __init__(
        self,
        events: list[Event],
        ask: Ask,
        time: Time,
        tell: Callable[[float, str, str], None],
    ) -> None:
        self._ask, self._time, self._tell = ask, time, tell
        self._began = time.monotonic()
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
            self._end()

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
        if event.serial is not None:
            machine, text = event.serial
            said = any(re.search(text, line) for line in self._serials[machine].lines)
            return now if said else None
        if event.found is not None:
            return now if self._ask("POST", "objects", {"name": event.found})["objects"] else None
        return self._began

    def _listen(self) -> None:
        """Read on at every serial port that an event waits for."""
        for planned in self._planned:
            if planned.event.serial is None or planned.due is not None or planned.done:
                continue
            machine = planned.event.serial[0]
            serial = self._serials.setdefault(machine, _Serial())
            if not serial.lines:
                self._read(machine, serial)

    def _read(self, machine: str, serial: _Serial) -> None:
        try:
            answer = self._ask("POST", "serial", {"machine": machine, "start": serial.start})
        except CommandError as error:
            if error.exit_code == 3:
                raise
            return  # It isn't there yet.
        serial.start = answer["next"]
        *serial.lines, serial.rest = (serial.rest + answer["contents"]).split("\n")

    def _put(self, planned: _Planned, now: float) -> None:
        event = planned.event
        try:
            planned.lift = KINDS[event.kind].put(self._ask, event.value)
        except CommandError as error:
            if error.exit_code == 3:
                raise
            planned.problem = str(error)
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

    def _end(self) -> None:
        for planned in self._planned:
            if planned.done:
                continue
            if planned.lift is not None:
                self._lift(planned)
            else:
                self._fail(planned)

    def _say(self, what: str, text: str) -> None:
        self._tell(round(self._time.monotonic() - self._began, 2), what, text)
