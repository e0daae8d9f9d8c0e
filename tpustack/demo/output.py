"""Shortens the engine's output to finished resources and diagnostics."""

from __future__ import annotations

import re
from collections.abc import Callable

_DONE = re.compile(
    r"^ ?(?P<sign>[-+~]+) +(?P<kind>\S+) (?P<name>\S+) "
    r"(?P<what>created|updated|deleted|replaced)(?P<time> \([\d.ms]+\))?"
)


class EngineOutput:
    """Passes on a line for each resource that is finished, and the engine's diagnostics."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._diagnostics = False

    def __call__(self, line: str) -> None:
        """Take the engine's next line."""
        text = line.rstrip()
        if text in ("Diagnostics:", "Outputs:", "Resources:"):
            self._diagnostics = text == "Diagnostics:"
        elif self._diagnostics and text:
            self._say(text)
        elif done := _DONE.match(text):
            kind = done["kind"].replace("gcp:", "")
            self._say(f"{done['sign']} {kind} {done['name']} {done['what']}{done['time'] or ''}")
