"""A job's log as a page follows it: its end first, then what is added, never more than fits."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpu_core.bucket import Item
from tpustack.jobs import waiting

Json = dict[str, Any]
_MOST_BYTES, _MOST_PIECES = 512 * 1024, 200
"""What one look reads at most; of more, the end."""
_AT_ONCE = 8
_PIECE = re.compile(r"/[0-9]{4,9}/[0-9]+$")


class Follower:
    """One reader of a job's log.

    Args:
        queue: where the job is.
        name: the job.
        behind: the last piece that was read before; empty for none.
    """

    def __init__(self, queue: Queue, name: str, behind: str = "") -> None:
        self._queue, self._name, self._behind = queue, name, behind
        self._number = 0
        self._decoder = _decoder()
        self.is_over = False

    def look(self) -> list[Json]:
        """Return what is new.

        An object has `skipped` (bytes that are left out), `try` (its number), `text` and `at` (the
        piece), or `state` and `code` of a job that is over.

        Raises:
            UsageError: there is no such job.
            StoreError: the bucket refuses.
        """
        # All of its log is in the bucket before it is said to be over.
        job = waiting.read(self._queue, self._name, ask=False)
        items = self._queue.store.items(paths.logs(self._name), behind=self._behind)
        # Other jobs may have written anything there.
        pieces = [one for one in items if _PIECE.search(one.path)]
        said = list(self._texts(pieces))
        if job.is_over:
            self.is_over = True
            said.append({"state": job.state, "code": job.code, "reason": job.reason})
        return said

    def _texts(self, pieces: Sequence[Item]) -> Iterator[Json]:
        kept = last(pieces)
        if left_out := sum(item.size for item in pieces[: len(pieces) - len(kept)]):
            self._decoder = _decoder()
            yield {"skipped": left_out}
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            contents = threads.map(lambda item: self._queue.store.read(item.path), kept)
            for item, content in zip(kept, contents, strict=True):
                self._behind = item.path
                yield from self._text(item, content[0] if content else b"")

    def _text(self, item: Item, content: bytes) -> Iterator[Json]:
        number = int(item.path.split("/")[-2])
        if number != self._number:
            self._number, self._decoder = number, _decoder()
            yield {"try": number}
        yield {"text": self._decoder.decode(content), "at": item.path}


def last(pieces: Sequence[Item]) -> Sequence[Item]:
    """Return the last pieces that one look may read, at least one if there are any."""
    total = 0
    for count, item in enumerate(reversed(pieces)):
        total += item.size
        if count and (total > _MOST_BYTES or count >= _MOST_PIECES):
            return pieces[len(pieces) - count :]
    return pieces


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
