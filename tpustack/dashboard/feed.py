"""The stream of all that the page shows: each change of each source, as soon as it is seen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from anyio.to_thread import run_sync

from tpustack.dashboard.sources import Source

_AT_ONCE = 8
_ALIVE = 10.0
"""After so many seconds without a change, an empty line shows who is gone."""


async def feed(sources: Sequence[Source]) -> AsyncIterator[bytes]:
    """Yield a line of JSON for each source at first, and then for each that has changed."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    limiter = anyio.CapacityLimiter(_AT_ONCE)
    tasks = [asyncio.create_task(_follow(source, lines, limiter)) for source in sources]
    try:
        while True:
            try:
                yield await asyncio.wait_for(lines.get(), _ALIVE)
            except asyncio.TimeoutError:
                yield b"\n"
    finally:
        for task in tasks:
            task.cancel()


async def _follow(
    source: Source, lines: asyncio.Queue[bytes], limiter: anyio.CapacityLimiter
) -> None:
    before = b""
    while True:
        line = await run_sync(lambda: line_of(source.message()), limiter=limiter)
        if line != before:
            lines.put_nowait(line)
            before = line
        await asyncio.sleep(source.every)


def line_of(message: dict[str, Any]) -> bytes:
    """Return a message as a line of its own."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
