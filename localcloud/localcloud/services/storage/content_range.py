"""The Content-Range header of a resumable upload's requests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from localcloud.core.call import Request
from localcloud.core.errors import invalid

_HEADER = re.compile(r"bytes (?:(?P<first>\d+)-(?P<last>\d+|\*)|\*)/(?P<total>\d+|\*)")


@dataclass(frozen=True)
class ContentRange:
    """Which bytes of the whole a request brings.

    Attributes:
        first: None when it brings none and only asks how far the upload is.
        last: None when the request's end tells.
        total: None when the client doesn't know it yet.
        whole: the request brings everything.
    """

    first: int | None = None
    last: int | None = None
    total: int | None = None
    whole: bool = False

    @classmethod
    def of(cls, request: Request, known: int | None) -> ContentRange:
        """Return the range of a request to a session that was started with `known` bytes in all.

        Raises:
            ApiError: 400 when it can't be read or contradicts the session.
        """
        header = request.headers.get("Content-Range", "").strip()
        if not header:
            return cls(first=0, whole=True)
        found = _HEADER.fullmatch(header)
        if not found:
            raise invalid(f"Failed to parse Content-Range header '{header}'.")
        first, last, total = (
            int(value) if value and value != "*" else None
            for value in found.group("first", "last", "total")
        )
        backwards = first is not None and last is not None and last < first
        if backwards or (last is not None and total is not None and last >= total):
            raise invalid(f"Failed to parse Content-Range header '{header}'.")
        if total is not None and known is not None and total != known:
            raise invalid(
                f"Invalid request.  The Content-Range header says {total} byte(s) in all, but the "
                f"upload was started with {known} byte(s)."
            )
        return cls(first, last, total)

    def complete(self, size: int) -> bool:
        """Return whether an upload with `size` bytes so far has all of them."""
        return self.whole or (self.total is not None and size >= self.total)

    def check_length(self, length: int) -> None:
        """Refuse a request that brought another number of bytes than it announced.

        Raises:
            ApiError: 400.
        """
        if self.first is None or self.last is None:
            return
        announced = self.last + 1 - self.first
        if length != announced:
            raise invalid(
                f"Invalid request.  The Content-Range header announces {announced} byte(s), but "
                f"{length} byte(s) came."
            )
