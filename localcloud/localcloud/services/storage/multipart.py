"""The body of a `multipart/related` upload: metadata first, then the bytes, as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from email.parser import BytesHeaderParser

from localcloud.core.call import Json, Stream, parse_json
from localcloud.core.errors import invalid
from localcloud.services.storage.content import CHUNK

_HEAD_LIMIT = 1 << 20


class RelatedBody:
    """Reads the two parts of an upload.

    Args:
        content_type: the request's Content-Type with the boundary.
        stream: the request's body.

    Raises:
        ApiError: 400 when the body is no such upload.
    """

    def __init__(self, content_type: str, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        header = Message()
        header["Content-Type"] = content_type
        # Some clients put the boundary between single quotes, which the parser leaves alone.
        boundary = str(header.get_param("boundary", "")).strip("'")
        if header.get_content_type() != "multipart/related" or not boundary:
            raise invalid(f"Multipart upload with the Content-Type '{content_type}'.")
        self._mark = b"--" + boundary.encode()
        first = self._line()
        if first.rstrip() != self._mark:
            raise invalid("Multipart upload that does not begin with its boundary.")
        # Google's own command line tools end lines with a line feed alone.
        self._end = b"\r\n" if first.endswith(b"\r\n") else b"\n"
        self.metadata = self._metadata()
        self.content_type = self._headers().get("Content-Type", "")
        """The Content-Type of the second part, or the empty string."""

    def chunks(self) -> Iterator[bytes]:
        """Return the bytes of the second part."""
        mark = self._end + self._mark
        while (found := self._buffer.find(mark)) < 0:
            # Keep back what may be the beginning of the boundary until more bytes come.
            ready = len(self._buffer) - len(mark) + 1
            if ready > 0:
                yield bytes(self._buffer[:ready])
                del self._buffer[:ready]
            self._more()
        if found:
            yield bytes(self._buffer[:found])

    def _metadata(self) -> Json:
        self._headers()
        text = bytearray()
        while not (line := self._line()).startswith(self._mark):
            text += line
        return parse_json(bytes(text))

    def _headers(self) -> Message:
        text = bytearray()
        while (line := self._line()).strip():
            text += line
        return BytesHeaderParser().parsebytes(bytes(text))

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _HEAD_LIMIT:
                raise invalid(f"Multipart upload with more than {_HEAD_LIMIT} bytes of metadata.")
            self._more()
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    def _more(self) -> None:
        chunk = self._stream.read(CHUNK)
        if not chunk:
            raise invalid("Multipart upload that ends without its closing boundary.")
        self._buffer += chunk
