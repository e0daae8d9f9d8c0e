"""Clears up after killed runs: locks that nobody holds, and operations that only began."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tpustack.recovery.killed_update import Recovery
from tpustack.recovery.locks import LockedError, holders

_T = TypeVar("_T")


class Repair:
    """Makes one stack usable again; `notes` says what was done for that."""

    def __init__(self, recovery: Recovery) -> None:
        self.notes: list[str] = []
        self._recovery = recovery

    def take_up(self) -> None:
        """Take what a killed run was creating into the state.

        Raises:
            LockedError: when that run is still going on.
        """
        recovery = self._recovery
        state = recovery.interrupted()
        if state is None:
            return
        # Only the lock tells a run that was killed from one that works.
        self.when_unlocked(recovery.ask_for_lock)
        found = recovery.look(state)
        self.when_unlocked(lambda: recovery.write(found))
        names = ", ".join(f"`{urn.rpartition('::')[2]}`" for urn in found.created) or "nothing"
        self.notes.append(f"An earlier run was killed; it was creating {names}.")

    def when_unlocked(self, operation: Callable[[], _T]) -> _T:
        """Do something that needs the lock, after releasing one whose holder is dead.

        Raises:
            LockedError: when somebody holds it.
        """
        try:
            return operation()
        except LockedError as error:
            if not self._recovery.are_orphaned(error.locks):
                raise
            self._recovery.release(error.locks)
            whose = holders(error.locks)
            self.notes.append(f"The lock of a run that is dead was released: {whose}.")
            return operation()
