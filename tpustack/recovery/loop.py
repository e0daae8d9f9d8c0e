"""Repair a stack again and again: for TPUs that no machine of the stack can bring back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from tpustack.errors import TpustackError

LOOK_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0


def repeat(
    once: Callable[[], object],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> None:
    """Call `once` each minute, for ever; after failures in a row each time later, up to an hour.

    Half of a longer pause is left to chance, so that several stacks don't ask at the same time.
    """
    failures = 0
    while True:
        try:
            once()
            failures = 0
        except TpustackError as error:
            failures += 1
            say(f"trying again: {error}")
        pause = min(_LONGEST_SECONDS, LOOK_SECONDS * 2.0 ** min(failures, 10))
        sleep(pause * (0.5 + 0.5 * chance()) if failures else LOOK_SECONDS)
