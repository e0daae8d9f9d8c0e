"""Request bodies as streams that end where the body does."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import IO, cast

Source = IO[bytes] | io.BufferedIOBase


class _Body(io.RawIOBase):
    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    @abstractmethod
    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes; nothing at the end of the body.

        Raises:
            ConnectionError: when the client closed before the end.
        """

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` by `read`."""
        view = memoryview(cast(bytearray, buffer)).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class LimitedBody(_Body):
    """The next `length` bytes of a stream."""

    def __init__(self, stream: Source, length: int) -> None:
        self._stream = stream
        self._left = length

    def read(self, size: int | None = -1) -> bytes:
        """See `_Body.read`."""
        want = self._left if size is None or size < 0 else min(size, self._left)
        data = self._stream.read(want) if want else b""
        self._left -= len(data)
        # Hand out what came before the end; the next read raises for the missing rest.
        if want and not data:
            raise ConnectionError(f"the client closed with {self._left} bytes still to send")
        return data


class ChunkedBody(_Body):
    """A body in chunked transfer coding (RFC 9112, section 7.1), decoded while it is read."""

    def __init__(self, stream: Source) -> None:
        self._stream = stream
        self._left = 0
        self._ended = False

    def read(self, size: int | None = -1) -> bytes:
        """See `_Body.read`."""
        whole = size is None or size < 0
        parts = bytearray()
        while not self._ended and (whole or len(parts) < (size or 0)):
            if not self._left:
                self._next_chunk()
                continue
            want = self._left if whole else min(self._left, (size or 0) - len(parts))
            data = self._stream.read(want)
            if len(data) < want:
                raise ConnectionError("the client closed inside a chunk")
            parts += data
            self._left -= want
            if not self._left:
                self._stream.readline()
        return bytes(parts)

    def _next_chunk(self) -> None:
        line = self._stream.readline().split(b";")[0].strip()
        try:
            self._left = int(line, 16)
        except ValueError:
            raise ConnectionError(f"{line!r} is no chunk size") from None
        if self._left == 0:
            self._ended = True
            while self._stream.readline().strip():
                pass
