"""How long a test waits before it calls something hung.

A guard, not a measurement: the slowest machine that runs these tests takes four times as long as
the quickest, and a test that passes never waits for the guard.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 900.0


def until(look: Callable[[], T], what: str = "it happens") -> T:
    """Look until there is something true, and return that."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)
    return seen
