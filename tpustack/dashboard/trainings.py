"""Trainings as the page shows them: goodput and cost by day, from the ledgers in a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from infra.cost.estimate import Estimate
from tpu_training.goodput.account import Account, Segment, account, timeline
from tpu_training.goodput.ledger import Ledger, read
from tpustack.cloud.google import Google
from tpustack.dashboard.objects import matching
from tpustack.dashboard.places import Place
from tpustack.goodput.files import files_of
from tpustack.goodput.money import money_of

Json = dict[str, Any]
_DAY = 86400.0
_GLOB = "jobs/**/ledger/*.json"
_MOST = 50
"""The trainings that changed last: a page that shows more is no help."""


class Trainings:
    """The trainings of a place; a ledger that has not changed is not read again."""

    def __init__(self, google: Google, place: Place, estimate: Estimate | None) -> None:
        self._google, self._place, self._estimate = google, place, estimate
        self._known: dict[str, tuple[tuple[int, ...], Json]] = {}

    def read(self) -> list[Json]:
        """Return what is known of each training, the newest first. Raises TpustackError."""
        folders: dict[str, list[int]] = {}
        for file in matching(self._google, self._place.bucket, "jobs/", _GLOB):
            folders.setdefault(file.path.rpartition("/ledger/")[0], []).append(file.generation)
        newest = sorted(folders, key=lambda folder: -max(folders[folder]))[:_MOST]
        self._known = {folder: self._of(folder, tuple(folders[folder])) for folder in newest}
        return [found for _, found in self._known.values() if found]

    def _of(self, folder: str, generations: tuple[int, ...]) -> tuple[tuple[int, ...], Json]:
        known = self._known.get(folder)
        if known and known[0] == generations:
            return known
        ledger = read(files_of(f"gs://{self._place.bucket}/{folder}", self._google))
        found = training(folder, ledger, self._estimate) if ledger.entries else {}
        return generations, found


def training(folder: str, ledger: Ledger, estimate: Estimate | None) -> Json:
    """Return a training's goodput and cost, in all and by day.

    Args:
        folder: its place in the bucket.
        ledger: what it wrote; there is at least one start.
        estimate: what the stack costs; None where that is not known.
    """
    total = account(ledger)
    return {
        "folder": folder,
        "begin": ledger.entries[0].begin,
        "end": ledger.entries[-1].end,
        "ending": ledger.entries[-1].ending,
        "steps": total.steps,
        "lostSteps": total.lost_steps,
        "starts": total.starts,
        "causes": dict(total.causes),
        **_figures(total, estimate),
        "days": [
            {"day": day, **_figures(dataclasses.replace(total, seconds=seconds), estimate)}
            for day, seconds in by_day(timeline(ledger), total.seconds).items()
        ],
        "problems": ledger.problems,
    }


def by_day(segments: Sequence[Segment], states: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the seconds of each state by day (UTC), the last day first."""
    days: dict[str, dict[str, float]] = {}
    for segment in segments:
        for day, share in _shares(segment.begin, segment.end):
            seconds = days.setdefault(day, dict.fromkeys(states, 0.0))
            for state, spent in segment.seconds.items():
                seconds[state] += spent * share
    return dict(sorted(days.items(), reverse=True))


def _shares(begin: float, end: float) -> Iterator[tuple[str, float]]:
    """Yield each day of a time, and the part of the time that lies in it."""
    now = begin
    while now < end:
        after = min(end, (now // _DAY + 1) * _DAY)
        day = datetime.fromtimestamp(now, tz=timezone.utc).date().isoformat()
        yield day, (after - now) / (end - begin)
        now = after


def _figures(total: Account, estimate: Estimate | None) -> Json:
    money = money_of(total, estimate) if estimate else None
    return {
        "wall": total.wall,
        "goodput": total.goodput,
        "seconds": {state: spent for state, spent in total.seconds.items() if spent},
        "cost": money and f"{money.total:f}",
        "complete": money is None or money.complete,
    }
