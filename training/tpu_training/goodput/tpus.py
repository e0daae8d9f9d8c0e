"""What became of the TPUs, as the agent on the machine that trains has written it.

Its files lie beside the entries, `MODEL_DIR/ledger/tpus-*.json`: a JSON object with `format`,
`machine`, `seen` (its last sign of life) and `events` with `at`, `tpu`, `state` and `cause`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tpu_training.goodput.entry import FORMAT, number

PREFIX = "tpus-"
READY = "ready"
# When several TPUs work together, the first of these in which any of them is says what is missing.
_WORST = ("stopped", "recovering", "queued", "provisioning", "absent")
STATES = (*_WORST, READY)
# An agent that is silent for longer was not just started again: nobody knows what happened.
_SILENCE = 900.0


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
    """Return what is in a file of the agent; None if that is garbage."""
    try:
        content = json.loads(text)
        events = tuple(
            Event(number(e["at"]), str(e["tpu"]), str(e["state"]), str(e.get("cause", "")))
            for e in content["events"]
        )
        found = TpusFile(str(content["machine"]), number(content["seen"]), events)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    known = content.get("format") == FORMAT and all(event.state in STATES for event in events)
    return found if known else None


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
    return min(now, key=lambda span: STATES.index(span.state), default=None)
