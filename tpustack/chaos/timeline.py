"""What went wrong, beside what the training did."""

from __future__ import annotations

import bisect
import json
import subprocess
import threading
import time
from dataclasses import dataclass, field

from rich.table import Table

from tpustack.local import LocalCloudCommand
from tpustack.logs.words import Progress

_STYLES = {"happens": "red", "ends": "green", "fails": "bold red", "never": "bold red"}


@dataclass(frozen=True)
class Happening:
    """A line of the scenario's own report; `seconds` since its start."""

    seconds: float
    what: str
    event: str


@dataclass
class Timeline:
    """Steps and faults by the time since the scenario's start."""

    began: float = field(default_factory=time.monotonic)
    clock: float = field(default_factory=time.time)
    """The time of day at the scenario's start."""
    happenings: list[Happening] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When the training spoke of which step."""

    def note(self, said: Progress) -> None:
        """Note how far the training is."""
        self.steps.append((time.monotonic() - self.began, said.step))

    def faults(self) -> int:
        """Return how many faults were put in force."""
        return sum(happening.what == "happens" for happening in self.happenings)

    def moments(self) -> list[float]:
        """Return when faults were put in force, in seconds since the epoch."""
        return [self.clock + each.seconds for each in self.happenings if each.what == "happens"]

    def missed(self) -> list[Happening]:
        """Return the faults that were not."""
        return [each for each in self.happenings if each.what in ("fails", "never")]

    def table(self) -> Table:
        """Draw it: each event, how far the training was then, and when it went on."""
        table = Table("s", "step", "", "event", "next step after", box=None, pad_edge=False)
        table.columns[0].justify = table.columns[1].justify = "right"
        times = [seconds for seconds, _ in self.steps]
        for each in self.happenings:
            place = bisect.bisect(times, each.seconds)
            step = str(self.steps[place - 1][1]) if place else "–"
            later = f"{times[place] - each.seconds:.1f} s" if place < len(times) else "–"
            style = _STYLES[each.what]
            table.add_row(f"{each.seconds:.1f}", step, each.what, each.event, later, style=style)
        return table


class Scenario:
    """A scenario that the local cloud plays, in a process of its own.

    Args:
        cloud: where.
        file: the scenario.
        timeline: gets what happens.
    """

    def __init__(self, cloud: LocalCloudCommand, file: str, timeline: Timeline) -> None:
        self._timeline = timeline
        timeline.began, timeline.clock = time.monotonic(), time.time()
        self._process = subprocess.Popen(
            cloud.arguments("faults", "run", file, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name="scenario", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Lift what is in force; what never happened is told."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(60)
        self._thread.join(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._timeline.happenings.append(Happening(**json.loads(line)))
