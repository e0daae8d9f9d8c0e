"""What killed runs leave behind: locks that nobody holds, and operations that only began."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tpustack.ci.engine import LockedError
from tpustack.ci.job import Job
from tpustack.ci.locks import orphaned
from tpustack.engine import Engine

_T = TypeVar("_T")


class Repair:
    """Makes one stack usable again; `notes` says what that took."""

    def __init__(self, job: Job, stack: str) -> None:
        self.notes: list[str] = []
        self._job, self._stack = job, stack

    def take_up(self) -> None:
        """Find what a killed run was creating.

        Raises:
            LockedError: when that run is still going on.
        """
        pipeline, line = self._job.pipeline, self._job.line(self._stack)
        if not pipeline.state(self._stack).get("pending_operations"):
            return
        # Only the lock tells a run that was killed from one that works: this asks for the lock.
        self.when_unlocked(lambda: pipeline.refresh(self._stack, line))
        engine = Engine(self._stack, pipeline.environment, self._job.root, create=False)
        begun = engine.recover(line)
        names = ", ".join(f"`{urn.rpartition('::')[2]}`" for urn in begun) or "nothing"
        self.notes.append(f"An earlier run was killed; it was creating {names}.")

    def when_unlocked(self, operation: Callable[[], _T]) -> _T:
        """Do something that needs the lock, after releasing one that nobody holds.

        Raises:
            LockedError: when somebody holds it.
        """
        try:
            return operation()
        except LockedError as error:
            if not orphaned(error.locks):
                raise
            holders = ", ".join(map(str, error.locks))
            self.notes.append(f"The lock of a run that is dead was released: {holders}.")
            self._job.pipeline.release(self._stack)
            return operation()
