"""The files of the page, as they lie in the package."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tpustack.cloud.google import Google
from tpustack.dashboard.sources import Place, Source, sources
from tpustack.dashboard.trainings import curves
from tpustack.errors import TpustackError

INDEX = "index.html"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


@cache
def assets() -> dict[str, bytes]:
    """Return the content of each file by its name."""
    folder = files("tpustack.dashboard") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if kind(file.name)}


def kind(name: str) -> str:
    """Return the media type of a file by its name; empty for one that is not of the page."""
    return _KINDS.get(f".{name.rpartition('.')[2]}", "")


# --- The page as files that any web server shows: what was there at one moment, for reading alone.

Json = dict[str, Any]
SNAPSHOT = "snapshot.json"
_LIVE, _STILL = b'<meta name="source" content="live">', b'<meta name="source" content="%s">'
_AT_ONCE = 8
_MOST_CURVES = 20
"""The newest trainings of each place whose curves go along."""


def export(places: Sequence[Place], folder: Path) -> Path:
    """Write the page into a folder, and return its first file.

    Logs do not go along, nor do the files of jobs: a website may be public.

    Raises:
        TpustackError: nothing could be read, or the folder can't be written.
    """
    snapshot = take_snapshot(places, Google())
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


def take_snapshot(places: Sequence[Place], google: Google) -> Json:
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
