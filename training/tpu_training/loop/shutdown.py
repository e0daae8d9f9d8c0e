"""SIGTERM: what systemd, a preempted VM and Google's autocheckpoint send before they kill."""

import signal
from types import FrameType

from tpu_training.errors import Interrupted


class ShutdownRequest:
    """Remembers that SIGTERM came.

    As a context it is entered around the training, which looks at `requested` after each loop and
    saves first. Outside of it there is nothing to save, and the job ends at once.
    """

    def __init__(self) -> None:
        """Nothing requested yet."""
        self.requested = False
        self._training = False

    def install(self) -> None:
        """Handle SIGTERM from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._handle)

    def __enter__(self) -> "ShutdownRequest":
        """Let SIGTERM wait for the end of the loop."""
        self._training = True
        return self

    def __exit__(self, *_: object) -> None:
        """Let SIGTERM end the job at once."""
        self._training = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
        if not self._training:
            raise Interrupted("SIGTERM came; nothing had to be saved, start again to go on")
