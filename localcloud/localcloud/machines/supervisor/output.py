"""Reads the output of a unit's processes, line by line."""

from __future__ import annotations

import os
from collections.abc import Callable

from localcloud.machines.supervisor.loop import Loop

_CHUNK = 1 << 16
# journald splits longer lines too (LineMax= in journald.conf).
_LONGEST = 48 * 1024


class Output:
    """Hands each line of a pipe to `line`; closes the pipe when all writers have closed it."""

    def __init__(self, loop: Loop, descriptor: int, line: Callable[[str], None]) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._line = line
        self._rest = b""
        self._open = True
        os.set_blocking(descriptor, False)
        loop.watch(descriptor, self.drain)

    def drain(self) -> None:
        """Read what is there now."""
        while self._open:
            try:
                data = os.read(self._descriptor, _CHUNK)
            except BlockingIOError:
                return
            if data:
                self._take(data)
            else:
                self._close()

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._line(line.rstrip(b"\r").decode("utf-8", "replace"))

    def _close(self) -> None:
        if self._rest:
            self._line(self._rest.decode("utf-8", "replace"))
        self._loop.forget(self._descriptor)
        os.close(self._descriptor)
        self._open = False
