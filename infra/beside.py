"""Look-ups that run beside the program, which does not wait for them until its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pulumi

_T = TypeVar("_T")


def look(ask: Callable[[], _T], tell: Callable[[_T], None]) -> None:
    """Call `ask` on a thread of its own, and `tell` with what it returns."""

    async def run() -> None:
        tell(await asyncio.to_thread(ask))

    # An output, since the program waits for all outputs before it ends.
    looked: Any = run()
    pulumi.Output.from_input(looked)
