"""The locks of a backend in a bucket or folder: who holds them, and whether that run is dead."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from tpustack.errors import TpustackError
from tpustack.recovery.processes import CLOCK, started

# No run of the pipeline lasts this long (`timeout-minutes` in the workflows).
LONGEST_RUN = timedelta(hours=2)
# pulumi/pkg/backend/diy/lock.go
_LOCK = re.compile(
    r"(?P<url>\S+): created by (?P<who>\S*)@(?P<host>\S*) \(pid (?P<pid>\d+)\) at (?P<at>\S+)"
)


@dataclass(frozen=True)
class Lock:
    """One lock, as the engine reports it."""

    url: str
    user: str
    host: str
    pid: int
    since: datetime

    def __str__(self) -> str:
        when = self.since.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.user}@{self.host} (process {self.pid}) since {when}"

    def is_orphaned(
        self, now: datetime, host: str, started: Callable[[int], datetime | None]
    ) -> bool:
        """Return whether its holder is gone: dead on this machine, or older than any run can be.

        Args:
            now: the time.
            host: this machine's name.
            started: when a process of this machine began; None if there is none that lives.
        """
        if now - self.since > LONGEST_RUN:
            return True
        if self.host != host:
            return False
        begin = started(self.pid)
        # The engine says the lock's time in whole seconds.
        return begin is None or begin > self.since + CLOCK


class LockedError(TpustackError):
    """Another update of the stack is running, or was killed."""

    def __init__(self, locks: list[Lock]) -> None:
        super().__init__("the stack is locked")
        self.locks = locks


def locks_in(message: str) -> list[Lock]:
    """Return the locks that the engine's refusal names."""
    return [
        Lock(
            found["url"],
            found["who"],
            found["host"],
            int(found["pid"]),
            datetime.fromisoformat(found["at"].replace("Z", "+00:00")),
        )
        for found in _LOCK.finditer(message)
    ]


def orphaned(locks: list[Lock]) -> bool:
    """Return whether the holders of all locks are gone."""
    now, host = datetime.now(timezone.utc), socket.gethostname()
    # Nobody is dead for sure whom the engine does not name.
    return bool(locks) and all(lock.is_orphaned(now, host, started) for lock in locks)


def holders(locks: list[Lock]) -> str:
    """Return who holds locks, for a message."""
    return ", ".join(map(str, locks)) or "somebody whom the engine does not name"


def held(stack: str, locks: list[Lock]) -> str:
    """Return the message about locks that are held."""
    return (
        f"stack {stack} is locked by {holders(locks)}. Nothing was changed. Wait for that run and "
        "start this one again; if it is dead, release the lock with "
        f"`tpustack recover --stack {stack}`"
    )
