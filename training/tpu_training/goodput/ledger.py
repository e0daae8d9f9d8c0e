"""The whole ledger of a job: its files, read, with what is wrong with them."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tpu_training.goodput.entry import ASIDE, FINISHED, Entry, parse
from tpu_training.goodput.tpus import PREFIX, Span, TpusFile, parse_tpus, spans

# A clock that differs by less may be right: a file takes a moment to be written.
_TOLERANCE = 10.0


@dataclass(frozen=True)
class File:
    """A file of a ledger.

    Attributes:
        name: Its path or URL.
        text: What is in it.
        written: When it was written by the bucket's clock; None where there is no such clock.
    """

    name: str
    text: str
    written: float | None = None


@dataclass(frozen=True)
class Ledger:
    """What a job's ledger says.

    Attributes:
        entries: Each start, in the order of time.
        spans: What became of each TPU.
        broken: The names of files that are garbage.
        clocks: By how many seconds each machine's clock was slow; those that were right are not in.
        aside: The names under which garbage was kept aside before.
    """

    entries: Sequence[Entry]
    spans: Sequence[Span]
    broken: Sequence[str]
    clocks: dict[str, float]
    aside: Sequence[str] = ()

    @property
    def problems(self) -> list[str]:
        """What a person should know of the figures."""
        wrong = [f"{name} is no file of a ledger; it is left out" for name in self.broken]
        wrong += [f"{name} was kept aside; what it may have said is missing" for name in self.aside]
        for machine, slow in self.clocks.items():
            way = "slow" if slow > 0 else "fast"
            wrong.append(
                f"the clock of {machine or 'a machine'} was {abs(slow):.0f} s {way} by the "
                "bucket's; its times are corrected"
            )
        overlap = sum(max(0.0, a.end - b.begin) for a, b in pairwise(self.entries))
        if overlap >= 1:
            wrong.append(
                f"starts overlap by {overlap:.0f} s: clocks disagree; each is taken to begin after "
                "the end of the one before"
            )
        return wrong


def read(files: Iterable[File]) -> Ledger:
    """Read a ledger's files; garbage is named and left out."""
    entries: list[Entry] = []
    tpus: list[TpusFile] = []
    broken, aside, clocks = [], [], dict[str, float]()
    for file in sorted(files, key=lambda file: file.name):
        if file.name.endswith(ASIDE):
            aside.append(file.name)
            continue
        if file.name.rpartition("/")[2].startswith(PREFIX):
            seen = parse_tpus(file.text)
            if seen:
                slow = _slow(file, seen.seen, seen.machine, clocks)
                tpus.append(_shifted(seen, slow))
                continue
        elif entry := parse(file.text):
            slow = _slow(file, entry.end, entry.machine, clocks)
            entries.append(dataclasses.replace(entry, begin=entry.begin + slow))
            continue
        broken.append(file.name)
    return Ledger(_completed(entries), spans(tpus), broken, clocks, aside)


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


def _slow(file: File, said: float, machine: str, clocks: dict[str, float]) -> float:
    """Return by how much the clock that said so was slow when the file was written."""
    slow = 0.0 if file.written is None else file.written - said
    if abs(slow) <= _TOLERANCE:
        return 0.0
    clocks[machine] = max(clocks.get(machine, 0.0), slow, key=abs)
    return slow


def _shifted(seen: TpusFile, slow: float) -> TpusFile:
    events = tuple(dataclasses.replace(event, at=event.at + slow) for event in seen.events)
    return TpusFile(seen.machine, seen.seen + slow, events)
