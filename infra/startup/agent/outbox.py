"""Messages that wait on the disk until everybody has been told, whatever becomes of the agent."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from .google import Json
from .messages import Send, Senders, tell_each

# What could not be told for so long is nobody's news.
_NEWS = 86400.0


class Outbox:
    """Texts to tell, each a file; any thread may use it, and nothing here ever fails.

    Args:
        folder: where they lie. It outlives a boot.
        senders: looks whom to tell.
        now: seconds since the epoch.
        say: writes a line to the journal.
    """

    def __init__(
        self,
        folder: Path,
        senders: Senders,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._senders, self._now, self._say = folder, senders, now, say
        self._lock = threading.Lock()
        self._said = ""

    def tell(self, text: str) -> None:
        """Tell a text now, and later those whom it has not reached."""
        letter: Json = {"text": text, "at": self._now(), "told": []}
        path = self._folder / f"{letter['at']:020.6f}.json"
        with self._lock:
            self._keep(path, letter)
            self._send(path, letter)

    def flush(self) -> None:
        """Tell what still waits."""
        with self._lock:
            for path in sorted(self._folder.glob("*.json")):
                try:
                    letter = json.loads(path.read_text("utf-8"))
                    self._send(path, letter)
                except (OSError, ValueError, TypeError, KeyError) as error:
                    self._complain(error)
                    _remove(path)

    def _send(self, path: Path, letter: Json) -> None:
        """Tell a text those who have not been told, each by itself: one may be out of reach."""

        def tell(kind: str, send: Send) -> None:
            if kind not in letter["told"]:
                send(letter["text"])
                letter["told"].append(kind)

        try:
            missing = tell_each(self._senders(), tell)
        except Exception as error:  # Of whatever kind: a message is not worth an agent.
            missing = error
        if missing:
            self._complain(missing)
        if missing and self._now() < letter["at"] + _NEWS:
            self._keep(path, letter)
        else:
            _remove(path)

    def _keep(self, path: Path, letter: Json) -> None:
        unfinished = path.with_suffix(".new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_text(json.dumps(letter), "utf-8")
            os.replace(unfinished, path)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        if str(error) != self._said:
            self._said = str(error)
            self._say(f"a message could not be sent, trying again: {error}")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
