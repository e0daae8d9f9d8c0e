"""The learning curves of a training, thinned to what a page can show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpustack.cloud.google import Google
from tpustack.dashboard.event_file import points
from tpustack.dashboard.objects import Found, matching
from tpustack.dashboard.places import Place
from tpustack.errors import UsageError

FOLDER = re.compile(r"jobs/[^/\x00-\x1f]{1,200}(/model)?")
"""What a training's folder in the bucket is called."""
_MOST_POINTS = 300
# Pictures and graphs lie in the same files.
_MOST_BYTES = 64 * 2**20
Curve = list[tuple[int, float]]


def curves(google: Google, place: Place, folder: str) -> dict[str, Curve]:
    """Return the points of each curve in a training's folder, by tag.

    Where a killed training was started again, what the later start wrote for a step counts.

    Raises:
        UsageError: the folder is none of a training.
        TpustackError: the bucket refuses.
    """
    if not FOLDER.fullmatch(folder):
        raise UsageError(f"{folder!r} is no folder of a training. Write it like jobs/NAME")
    queue = place.queue(google)
    series: dict[str, dict[int, float]] = {}
    for file in _newest(list(_files(google, place, folder))):
        found = queue.store.read(file.path)
        for tag, step, value in points(found[0] if found else b""):
            series.setdefault(tag, {})[step] = value
    return {tag: thinned(sorted(series[tag].items())) for tag in sorted(series)}


def thinned(curve: Sequence[tuple[int, float]], most: int = _MOST_POINTS) -> Curve:
    """Return at most `most` points, with the first, the last, and of each part lowest and highest.

    So no peak is lost, however many points there are.
    """
    if len(curve) <= most:
        return list(curve)
    parts = (most - 2) // 2
    kept = {0: curve[0], len(curve) - 1: curve[-1]}
    for part in range(parts):
        places = range(part * len(curve) // parts, (part + 1) * len(curve) // parts)
        for chosen in (min, max):
            place = chosen(places, key=lambda number: curve[number][1])
            kept[place] = curve[place]
    return [kept[place] for place in sorted(kept)]


def _files(google: Google, place: Place, folder: str) -> list[Found]:
    """Return the event files of a training: in its folder, or in one for each split."""
    prefix = f"{folder}/"
    found = matching(google, place.bucket, prefix, f"{_literal(prefix)}**events.out.tfevents.*")
    return sorted(found, key=lambda file: file.path.rpartition("/")[2])


def _newest(files: Sequence[Found]) -> list[Found]:
    """Return the newest files that are small enough together, the oldest of them first."""
    kept: list[Found] = []
    left = _MOST_BYTES
    for file in reversed(files):
        left -= file.size
        if left < 0:
            break
        kept.insert(0, file)
    return kept


def _literal(text: str) -> str:
    """Return a glob that matches only the text itself."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", text)
