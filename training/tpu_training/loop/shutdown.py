"""Handle SIGTERM, which systemd, a VM's preemption and Google's autocheckpoint send first.

The metadata server says the same a little earlier; see job/notices.py.
"""

import signal
from types import FrameType

from tpu_training.errors import Interrupted

_SIGTERM = "received SIGTERM"


class ShutdownRequest:
    """Remembers that the job has to end, or has to save because it may have to end.

    Used as a context manager around the training, which looks after each loop and saves before it
    ends. Outside it there is nothing to save, and SIGTERM ends the job at once.
    """

    def __init__(self) -> None:
        """Start without a request."""
        self.requested = False
        self.reason = _SIGTERM
        self._save = False
        self._training = False

    def install(self) -> None:
        """Handle SIGTERM from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._handle)

    def request(self, reason: str) -> None:
        """Ask the training to save and to end; from any thread."""
        self.reason, self.requested = reason, True

    def request_save(self) -> None:
        """Ask the training to save and to go on; from any thread."""
        self._save = True

    def why(self) -> str:
        """Return the reason of the request to end; empty without one."""
        return self.reason if self.requested else ""

    def check(self) -> None:
        """Raise Interrupted if there is a request to end."""
        if self.requested:
            raise Interrupted(f"{self.reason}; start again to resume")

    def take_notice(self) -> bool:
        """Return whether to save now; a request to save is answered by one checkpoint."""
        save, self._save = self._save, False
        return save or self.requested

    def __enter__(self) -> "ShutdownRequest":
        """Defer SIGTERM to the end of the loop."""
        self._training = True
        return self

    def __exit__(self, *_: object) -> None:
        """Let SIGTERM end the job at once."""
        self._training = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.reason, self.requested = _SIGTERM, True
        if not self._training:
            raise Interrupted(f"{_SIGTERM}; there was nothing to save, start again to resume")
