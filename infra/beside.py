"""Look-ups that run beside the program, which does not wait for them until its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import pulumi

_T = TypeVar("_T")
LONGEST = 12.0
"""Seconds that a preview waits for Google; one call that is not answered takes 10."""


def start(ask: Callable[[], _T]) -> Future[_T]:
    """Call `ask` on a thread that the program's end does not wait for."""
    asked: Future[_T] = Future()
    # Then a caller that stops waiting does not cancel it.
    asked.set_running_or_notify_cancel()

    def run() -> None:
        try:
            asked.set_result(ask())
        except Exception as error:
            asked.set_exception(error)

    threading.Thread(target=run, name="beside", daemon=True).start()
    return asked


def look(ask: Callable[[], _T], tell: Callable[[_T], None]) -> None:
    """Call `ask` beside the program, and `tell` with what it returns, unless that takes too long.

    A host that does not answer may have many addresses, each of which is tried.
    """
    asked = start(ask)

    async def run() -> None:
        with suppress(asyncio.TimeoutError):
            tell(await asyncio.wait_for(asyncio.wrap_future(asked), LONGEST))

    # An output, since the program waits for all outputs before it ends.
    looked: Any = run()
    pulumi.Output.from_input(looked)
