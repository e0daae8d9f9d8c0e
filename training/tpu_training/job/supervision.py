"""What whoever supervises this process may know of it: that it lives, and how it ended.

Both are files that the environment names; without the names nothing is written.
"""

import contextlib
import json
import os
import time
from pathlib import Path

OUTCOME, PULSE = "TPU_TRAINING_OUTCOME", "TPU_TRAINING_PULSE"
# No supervisor looks more often.
_RARELY_SECONDS = 1.0


def write_outcome(exit_code: int, cause: str, message: str) -> None:
    """Say how this process ends: `{"exitCode", "cause", "message"}`.

    Args:
        exit_code: with which it ends.
        cause: an ID of the catalog of errors, or a word of its own; empty if it is not known.
        message: for people, with the cure.
    """
    content = {"exitCode": exit_code, "cause": cause, "message": message}
    _write(OUTCOME, json.dumps(content))


class Pulse:
    """Says until when the next sign of life comes, and how many steps are done: `TIME STEP`.

    The time is in seconds since the epoch, 0 if there is no limit; the step is -1 before the first.
    """

    def __init__(self) -> None:
        self._written = -_RARELY_SECONDS

    def beat(self, seconds: float, step: int | None) -> None:
        """Expect the next beat within so many seconds; 0 for no limit."""
        now = time.monotonic()
        if now - self._written < _RARELY_SECONDS and step is not None:
            return
        self._written = now
        deadline = time.time() + seconds if seconds else 0.0
        _write(PULSE, f"{deadline:.0f} {-1 if step is None else step}")


def _write(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        # A supervisor that learns nothing goes by the exit code.
        with contextlib.suppress(OSError):
            unfinished = Path(f"{path}.new")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
