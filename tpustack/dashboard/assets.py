"""The files of the page, as they lie in the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

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
