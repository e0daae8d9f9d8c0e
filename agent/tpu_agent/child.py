"""A program that outlives the agent, and never runs twice.

Its processes hold a lock on a file, which every child inherits. So an agent that
was killed at any point, also between two of its own instructions, finds out afterwards whether the
program still runs, and no number of a process is ever taken for another's.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# A shell keeps the exit code, for an agent that is not the program's parent. SIGTERM goes to the
# whole group: the shell waits for the program, which does not inherit a trap as it does a signal
# that is ignored.
_KEEPER = """
number=$1
shift
trap : TERM INT HUP
echo "$number $$" >"$0/pid"
"$@"
code=$?
echo "$number $code" >"$0/code.new" && mv "$0/code.new" "$0/code"
exit $code
"""
_UNKNOWN_CODE = -1


@dataclass(frozen=True)
class Ended:
    """How a program ended.

    Attributes:
        number: which start of the program it was, as `start` was told.
        code: its exit code, 128 and the signal's number for one that was killed; -1 if its keeper
            was killed, too.
    """

    number: int
    code: int


class Child:
    """At most one running program for each folder; for one thread at a time.

    Args:
        folder: for its lock, its process number and its exit code; made if it is missing. On a
            local disk.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Start a program with this agent's output; return False if one runs already.

        Args:
            number: of this start, from 1.
            command: the program and its arguments.
            environment: all of it.

        Raises:
            OSError: if no process can be made.
        """
        with self._lock() as lock:
            if lock is None:
                return False
            for name in ("pid", "code"):
                (self.folder / name).unlink(missing_ok=True)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, str(self.folder), str(number), *command],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(lock,),
            )
        return True

    def running(self) -> bool:
        """Return whether the program or a process that it started runs, even from another agent."""
        if self._process is not None:
            self._process.poll()
        with self._lock() as lock:
            return lock is None

    def ended(self, number: int) -> Ended | None:
        """Return how that start ended, once nothing runs any more; None if it never was."""
        if (code := self._of(number, "code")) is not None:
            return Ended(number, code)
        return None if self._of(number, "pid") is None else Ended(number, _UNKNOWN_CODE)

    def last(self) -> int:
        """Return the number of the last start; 0 for none."""
        return self._written("pid")[0]

    def _of(self, number: int, name: str) -> int | None:
        """Return what the keeper has written of a start."""
        known, value = self._written(name)
        return value if known == number else None

    def _written(self, name: str) -> tuple[int, int]:
        try:
            known, value = map(int, (self.folder / name).read_text().split())
        except (OSError, ValueError):
            return 0, 0
        return known, value

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the program and to what it started."""
        try:
            group = int((self.folder / "pid").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            # The keeper has not written it yet, or the disk is full.
            if self._process is None:
                return
            group = self._process.pid
        # While the lock is held by a process of this group, no other process has its number.
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int | None]:
        """Yield the descriptor of the lock; None if a process has it."""
        lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield lock
        finally:
            # The program's own descriptor keeps what this one locked.
            os.close(lock)
