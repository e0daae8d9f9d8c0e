"""The page as files that any web server shows: what was there at one moment, for reading alone."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tpustack.cloud.google import Google
from tpustack.dashboard.assets import INDEX, assets
from tpustack.dashboard.curves import curves
from tpustack.dashboard.places import Place
from tpustack.dashboard.sources import Source, sources
from tpustack.errors import TpustackError

Json = dict[str, Any]
SNAPSHOT = "snapshot.json"
_LIVE, _STILL = b'<meta name="source" content="live">', b'<meta name="source" content="%s">'
_AT_ONCE = 8
_MOST_CURVES = 20
"""The newest trainings of each place whose curves go along."""


def write(places: Sequence[Place], folder: Path) -> Path:
    """Write the page into a folder, and return its first file.

    Logs do not go along, nor do the files of jobs: a website may be public.

    Raises:
        TpustackError: nothing could be read, or the folder can't be written.
    """
    snapshot = taken(places, Google())
    page = dict(assets())
    page[INDEX] = page[INDEX].replace(_LIVE, _STILL % SNAPSHOT.encode())
    page[SNAPSHOT] = json.dumps(snapshot, separators=(",", ":")).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in page.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise TpustackError(f"--export={folder}: it can't be written: {error.strerror}") from None
    return folder / INDEX


def taken(places: Sequence[Place], google: Google) -> Json:
    """Return what the page shows now.

    Raises:
        TpustackError: none of the places could be read.
    """
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        messages = list(threads.map(Source.message, sources(places, google)))
    _require_some(messages)
    return {"at": time.time(), "messages": messages, "curves": _curves(places, google, messages)}


def _require_some(messages: Sequence[Json]) -> None:
    problems = [each["problem"] for each in messages if each["place"]]
    if problems and all(problems):
        raise TpustackError("\n".join(dict.fromkeys(problems)))


def _curves(places: Sequence[Place], google: Google, messages: Sequence[Json]) -> Json:
    """Return the curves of each training, by its place and folder."""
    named = {place.name: place for place in places}
    trainings = [
        (message["place"], each["folder"])
        for message in messages
        if message["topic"] == "trainings"
        for each in message["data"][:_MOST_CURVES]
    ]
    return {
        f"{place}/{folder}": curves(google, named[place], folder) for place, folder in trainings
    }
