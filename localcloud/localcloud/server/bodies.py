"""Request bodies as streams that end where the body does."""

from __future__ import annotations

import io


class LimitedBody:
    """The next `length` bytes of a stream."""

    def __init__(self, stream: io.BufferedIOBase, length: int) -> None:
        self._stream = stream
        self._left = length

    def read(self, size: int = -1, /) -> bytes:
        """See `Stream.read`."""
        want = self._left if size < 0 else min(size, self._left)
        data = self._stream.read(want) if want else b""
        self._left -= len(data)
        # Hand out what came before the end; the next read raises for the missing rest.
        if want and not data:
            raise ConnectionError(f"the client closed with {self._left} bytes still to send")
        return data


class ChunkedBody:
    """A body in chunked transfer coding (RFC 9112, section 7.1), decoded while it is read."""

    def __init__(self, stream: io.BufferedIOBase) -> None:
        self._stream = stream
        self._left = 0
        self._ended = False

    def read(self, size: int = -1, /) -> bytes:
        """See `Stream.read`."""
        parts = bytearray()
        while not self._ended and (size < 0 or len(parts) < size):
            if not self._left:
                self._next_chunk()
                continue
            want = self._left if size < 0 else min(self._left, size - len(parts))
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
