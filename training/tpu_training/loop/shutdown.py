"""Handle SIGTERM, which systemd, a VM's preemption and Google's autocheckpoint send first."""

import signal
from types import FrameType

from tpu_training.errors import Interrupted


class ShutdownRequest:
    """Remembers that SIGTERM arrived.

    Used as a context manager around the training, which checks `requested` after each loop and
    saves before it ends. Outside it there is nothing to save, and the job ends at once.
    """

    def __init__(self) -> None:
        """Start without a request."""
        self.requested = False
        self._training = False

    def install(self) -> None:
        """Handle SIGTERM from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._handle)

    def __enter__(self) -> "ShutdownRequest":
        """Defer SIGTERM to the end of the loop."""
        self._training = True
        return self

    def __exit__(self, *_: object) -> None:
        """Let SIGTERM end the job at once."""
        self._training = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
        if not self._training:
            raise Interrupted("received SIGTERM; there was nothing to save, start again to resume")
