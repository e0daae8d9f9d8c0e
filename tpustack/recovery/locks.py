"""The locks of a backend in a bucket or folder: who holds them, and whether that run is dead."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from urllib.parse import unquote, urlsplit

from tpustack.errors import TpustackError
from tpustack.recovery.holders import Held

Ended = Callable[[str], bool]
"""Whether a run of a pipeline, by its address, has ended for sure."""
# pulumi/pkg/backend/diy/lock.go
_LOCK = re.compile(
    r"(?P<url>\S+): created by (?P<who>\S*)@(?P<host>\S*) \(pid (?P<pid>\d+)\) at (?P<at>\S+)"
)
_FOLDER = ".pulumi/locks/"
# An engine takes its lock soon after it has begun. What takes longer is left to a person.
_BEFORE, _AFTER = timedelta(seconds=5), timedelta(minutes=5)


def unknown(_run: str) -> bool:
    """Ask no forge: no run is known to have ended."""
    return False


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

    def is_orphaned(self, known: Sequence[Held], ended: Ended) -> bool:
        """Return whether its holder is dead for sure; what is unknown counts as alive.

        Neither its age nor a process number of this machine proves that: a run may take days, and
        another container may have the same host and the same numbers.

        Args:
            known: the engines that are noted next to the state.
            ended: asks the forge about the run that a holder was in.
        """
        own = [each for each in known if self.may_be_of(each)]
        return bool(own) and all(
            not each.holder.is_here()
            and (each.holder.is_gone() or bool(each.run and ended(each.run)))
            for each in own
        )

    def may_be_of(self, held: Held) -> bool:
        """Return whether a noted engine may have taken this lock."""
        own = (held.holder.machine, held.holder.process) == (self.host, self.pid)
        return own and -_BEFORE <= self.since - held.since <= _AFTER

    def path(self, stack: str) -> str:
        """Return its file in the backend; nothing where it is not one of this stack's locks."""
        _, found, rest = unquote(urlsplit(self.url).path).partition(f"/{_FOLDER}")
        folders = rest.split("/")
        ours = found and folders[-2:-1] == [stack] and ".." not in folders
        return f"{_FOLDER}{rest}" if ours else ""


class LockedError(TpustackError):
    """Another update of the stack is running, or was killed."""

    def __init__(self, locks: list[Lock]) -> None:
        super().__init__(f"the stack is locked by {holders(locks)}")
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


def holders(locks: list[Lock]) -> str:
    """Return who holds locks, for a message."""
    return ", ".join(map(str, locks)) or "somebody whom the engine does not name"


def held(stack: str, locks: list[Lock]) -> str:
    """Return the message about locks that are held."""
    return (
        f"stack {stack} is locked by {holders(locks)}, which is not known to be dead. Nothing was "
        "changed. Wait for that run and start this one again; if you know that it is dead, release "
        f"its lock with `tpustack recover --yes --stack {stack}`"
    )
