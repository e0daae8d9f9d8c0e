"""What making TPUs anew needs beside Google."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class World:
    """What the agent needs beside Google, which tests replace.

    Attributes:
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        silent: why no gRPC server answers at (host, port); None if one does.
        chance: a number from 0 to 1.
        tell: tells people elsewhere what they have to act on; it never fails.
    """

    now: Callable[[], float]
    say: Callable[[str], None]
    silent: Callable[[str, int], str | None]
    chance: Callable[[], float]
    tell: Callable[[str], None] = lambda text: None
