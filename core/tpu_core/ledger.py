"""The ledger of a job: what each of its starts did with its time, and what became of its TPUs.

Each start of a trainer rewrites one file of its own, `MODEL_DIR/ledger/*.json`. The agent writes
`tpus-*.json` next to them: a JSON object with `format`, `machine`, `seen` (its last sign of life)
and `events` with `at`, `tpu`, `state` and `cause`.
"""

import dataclasses
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise, zip_longest
from typing import NamedTuple

from tpu_core import records

FOLDER = "ledger"
# Before the first step, as Beginning measures it, and from it on.
BEFORE = ("load", "wait", "connect", "restore")
PARTS = (*BEFORE, "start", "compute", "input", "checkpoint", "evaluate", "idle")
_LATEST = 1e12
FINISHED = "finished"
"""The ending of a start that did the job's last step."""
PREFIX = "tpus-"
# When several TPUs work together, the first of these in which any of them is says what is missing.
_WORST = ("stopped", "recovering", "queued", "provisioning", "absent")
# An agent that is silent for longer was not just restarted: what happened is unknown.
_SILENCE = 900.0
# A killed start is known up to its last entry; each is a write to the bucket.
_WRITE_SECONDS = 60.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One start of a job.

    Attributes:
        begin: When it started, in seconds since the epoch by its machine's clock.
        duration: For how long it has run, by a clock that is never set.
        first_step: The step from which it continued.
        last_step: The last one that it finished.
        seconds: What it spent on each of PARTS; the rest of `duration` came before its first loop.
        machine: The name of the machine it ran on; empty if unknown.
        ending: Why it ended; empty while it runs, and for ever if it was killed.
    """

    begin: float
    duration: float
    first_step: int
    last_step: int
    seconds: dict[str, float]
    machine: str = ""
    ending: str = ""

    @property
    def end(self) -> float:
        """Its last sign of life."""
        return self.begin + self.duration

    def to_json(self) -> str:
        """Return the text of its file."""
        return json.dumps(records.stamped(dataclasses.asdict(self)), sort_keys=True) + "\n"


def parse_entry(text: str) -> Entry | None:
    """Return the entry in a file's text; None if it is damaged."""
    with suppress(records.Unreadable):
        found = records.load(Entry, text)
        times = (found.begin, found.duration, *found.seconds.values())
        if found.seconds.keys() == set(PARTS) and 0 <= found.first_step <= found.last_step:
            return found if _are_times(*times) else None
    return None


def _are_times(*values: float) -> bool:
    return all(0 <= value < _LATEST for value in values)


READY = "ready"
TPU_STATES = (*_WORST, READY)


@dataclass(frozen=True)
class Event:
    """From `at` on, a TPU is in `state`."""

    at: float
    tpu: str
    state: str
    cause: str = ""


@dataclass(frozen=True)
class TpusFile:
    """What one start of the agent has seen."""

    machine: str
    seen: float
    events: tuple[Event, ...]

    @property
    def begin(self) -> float:
        """The first thing that it saw."""
        return min(event.at for event in self.events)


@dataclass(frozen=True)
class Span:
    """From `begin` to `end`, a TPU was in `state`; `cause` says why."""

    begin: float
    end: float
    tpu: str
    state: str
    cause: str = ""


def parse_tpus(text: str) -> TpusFile | None:
    """Return what is in a file of the agent; None if it is damaged."""
    with suppress(records.Unreadable):
        found = records.load(TpusFile, text)
        known = all(event.state in TPU_STATES for event in found.events)
        times = (found.seen, *(event.at for event in found.events))
        return found if known and _are_times(*times) else None
    return None


def spans(files: Sequence[TpusFile]) -> list[Span]:
    """Return the states of each TPU, in order; where nothing is known, there is none."""
    lives = _lives(files)
    tpus = sorted({event.tpu for file in files for event in file.events})
    return [span for tpu in tpus for span in _of_tpu(files, lives, tpu)]


def _lives(files: Sequence[TpusFile]) -> list[tuple[float, float]]:
    """Return when an agent lived, without the short silences in which it was started again."""
    lives: list[tuple[float, float]] = []
    for begin, end in sorted((file.begin, file.seen) for file in files if file.events):
        if lives and begin - lives[-1][1] <= _SILENCE:
            lives[-1] = lives[-1][0], max(end, lives[-1][1])
        else:
            lives.append((begin, end))
    return lives


def _of_tpu(
    files: Sequence[TpusFile], lives: Sequence[tuple[float, float]], tpu: str
) -> Iterator[Span]:
    """Yield one TPU's states: each holds until the next, or until the agent's end."""
    events = sorted((e for f in files for e in f.events if e.tpu == tpu), key=lambda e: e.at)
    for event, following in zip_longest(events, events[1:]):
        end = next((end for begin, end in lives if begin <= event.at <= end), event.at)
        end = min(end, following.at) if following else end
        if end > event.at:
            yield Span(event.at, end, tpu, event.state, event.cause)


def worst_at(found: Sequence[Span], when: float) -> Span | None:
    """Return the span that keeps a job from running at a time; READY only if all are."""
    now = [span for span in found if span.begin <= when < span.end]
    return min(now, key=lambda span: TPU_STATES.index(span.state), default=None)


class File(NamedTuple):
    """A file of a ledger: its path or URL, and what is in it."""

    name: str
    text: str


@dataclass(frozen=True)
class Ledger:
    """What a job's ledger says.

    Attributes:
        entries: Each start, in the order of time.
        spans: What became of each TPU.
        broken: The names of damaged files.
    """

    entries: Sequence[Entry]
    spans: Sequence[Span]
    broken: Sequence[str] = ()

    @property
    def problems(self) -> list[str]:
        """What a person should know of the figures."""
        wrong = [f"{name} is not a ledger file and is ignored" for name in self.broken]
        overlap = sum(max(0.0, a.end - b.begin) for a, b in pairwise(self.entries))
        if overlap >= 1:
            wrong.append(
                f"starts overlap by {overlap:.0f} s: clocks disagree, so each counts from the end "
                "of the one before"
            )
        return wrong


def read(files: Iterable[File]) -> Ledger:
    """Read a ledger's files; damaged ones are named and left out."""
    entries: list[Entry] = []
    tpus: list[TpusFile] = []
    broken = []
    for file in sorted(files):
        if file.name.rpartition("/")[2].startswith(PREFIX):
            if seen := parse_tpus(file.text):
                tpus.append(seen)
                continue
        elif entry := parse_entry(file.text):
            entries.append(entry)
            continue
        broken.append(file.name)
    return Ledger(_completed(entries), spans(tpus), broken)


def ended_by(ledger: Ledger, tries: Sequence[tuple[float, str]]) -> Ledger:
    """Return a ledger whose starts ended as the supervisor of their job saw it.

    Args:
        ledger: The job's.
        tries: When each try of the job began, and why it ended; empty for one that exited or runs.
    """

    def ending(entry: Entry) -> str:
        _, why = max((one for one in tries if one[0] <= entry.begin), default=(0.0, ""))
        return entry.ending if why in ("", "exited") or entry.ending == FINISHED else why

    entries = [dataclasses.replace(entry, ending=ending(entry)) for entry in ledger.entries]
    return dataclasses.replace(ledger, entries=entries)


def _completed(entries: Iterable[Entry]) -> list[Entry]:
    """Put starts in order; one that was killed did the steps, too, that the next did not repeat."""
    ordered = sorted(entries, key=lambda entry: entry.begin)
    return [
        dataclasses.replace(entry, last_step=max(entry.last_step, follower.first_step))
        for entry, follower in pairwise(ordered)
    ] + ordered[-1:]


class Beginning:
    """Measures the parts of a start before its first loop, in seconds."""

    def __init__(
        self, begun: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin at `begun` by `clock`, or now; what is over already went into loading."""
        self.clock = clock
        self.begun = clock() if begun is None else begun
        self.seconds = dict.fromkeys(BEFORE, 0.0)
        self.seconds["load"] = clock() - self.begun

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time within to one of BEFORE, without that of other parts within it."""
        begun, before = self.clock(), sum(self.seconds.values())
        try:
            yield
        finally:
            within = sum(self.seconds.values()) - before
            self.seconds[part] += self.clock() - begun - within


class Writer:
    """Keeps the entry of this start. An entry that can't be written never ends a training.

    Attributes:
        seconds: What it has spent on each of PARTS so far, by those who measure.
        last: The last step that it finished.
    """

    def __init__(
        self, seconds: Mapping[str, float], beginning: Beginning, write: Callable[[str, str], None]
    ) -> None:
        """Begin with `beginning`; `write` gets the path in the model directory, and the text."""
        self.seconds, self._write = seconds, write
        self._clock, self._begun = beginning.clock, beginning.begun
        self._begin = time.time() - (self._clock() - self._begun)
        # One process may start twice in a second.
        begin = datetime.fromtimestamp(self._begin, tz=timezone.utc)
        self._path = f"{FOLDER}/{begin:%Y%m%dT%H%M%S.%fZ}-{os.getpid()}.json"
        self.last, self._first = 0, -1
        self._written = self._clock()

    def start(self, step: int) -> None:
        """Note the step from which it continues, and write."""
        self._first = self.last = step
        self.keep()

    def step(self, step: int, *, saved: bool = False) -> None:
        """Note a finished step; write from time to time, and if a checkpoint has `saved` it."""
        self.last = step
        # A start that is killed can't write later how far its checkpoints go.
        if saved or self._clock() - self._written >= _WRITE_SECONDS:
            self.keep()

    def keep(self, ending: str = "") -> None:
        """Write all of it, once it has started."""
        # Without its first step it would say that all earlier ones are done again.
        if self._first < 0:
            return
        self._written = self._clock()
        entry = Entry(
            begin=round(self._begin, 3),
            duration=round(self._clock() - self._begun, 3),
            first_step=self._first,
            last_step=self.last,
            seconds={part: round(self.seconds[part], 3) for part in PARTS},
            machine=socket.gethostname(),
            ending=ending,
        )
        try:
            self._write(self._path, entry.to_json())
        except Exception as error:
            logger.warning("ledger: not written (%s)", error)
