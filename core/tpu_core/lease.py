"""A right that one holder has at a time (a TPU's jobs, a model directory), by a bucket's object.

The object's generation changes with each holder, `updated` with each renewal. No machine's clock
matters: the bucket says how old a renewal is, and holders measure durations only. A holder whose
renewals fail stops well before another may start (fencing: every write that counts asks `is_sure`
first, or is made on the condition of a generation).

`hold` gives that of a model directory: two trainers never write one at the same time. In a bucket
it is renewed on a thread: what is written after the lease was lost would mix two trainers'
checkpoints, so each write asks `confirm` first. In a folder it is a lock of the file system, which
ends with its process.
"""

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from tpu_core import records
from tpu_core.bucket import Bucket, Conflict, Item
from tpu_core.google import GoogleError, machine_transport, may_pass
from tpu_core.process import Process, parse

FILE_NAME = "lease.json"  # below the model directory
_LOOK_SECONDS = 1.0
# A job ends if the bucket does not answer for so long.
_PATIENCE_SECONDS = 300.0
# Some network file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

logger = logging.getLogger(__name__)

DURATION = 60.0
"""Seconds after its last renewal at which a holder has lost the lease to the first who asks."""
SURE = 40.0
"""Seconds after its last renewal until which a holder may act on it."""
RENEWAL = 10.0
FRESH = 2.0
"""Cloud Storage takes one change of an object a second, so nothing is fresher than this.

https://docs.cloud.google.com/storage/quotas#objects
"""


@dataclass(frozen=True)
class Holder:
    """Who holds a lease.

    Attributes:
        id: no other holder has the same.
        name: for people.
        about: what else others may read of it in the lease.
    """

    id: str
    name: str
    about: Mapping[str, Any] = field(default_factory=dict)


class Lease:
    """One lease, for one thread.

    Args:
        bucket: where it is.
        path: its object.
        me: this holder.
        now: seconds, also those in which the machine was suspended.
        say: writes a line for people.
        right: what its holder does, for people.
        is_gone: whether another holder, by its summary, is known to have ended.
    """

    def __init__(
        self,
        bucket: Bucket,
        path: str,
        me: Holder,
        now: Callable[[], float],
        say: Callable[[str], None],
        right: str,
        is_gone: Callable[[Mapping[str, Any]], bool] = lambda _: False,
    ) -> None:
        self._bucket, self._path, self._me = bucket, path, me
        self._now, self._say, self._right, self._is_gone = now, say, right, is_gone
        self._generation: int | None = None
        self.other: Item | None = None
        """Who else held it when this holder last tried to get it; None if it was free."""
        self._renewals = 0
        self.renewed = 0.0
        """When the bucket was asked what it confirmed last."""
        self._said = ""

    @property
    def is_sure(self) -> bool:
        """Whether no one else can hold the lease at this moment."""
        return self._generation is not None and self._now() < self.renewed + SURE

    @property
    def is_held(self) -> bool:
        """Whether this holder got the lease and has not been seen to lose it."""
        return self._generation is not None

    def hold(self, within: float = RENEWAL) -> bool:
        """Return whether this holder has the lease, after asking the bucket if it is time to.

        Args:
            within: how many seconds old the bucket's last answer may be.

        Raises:
            GoogleError: the bucket refuses, or can't be reached, and the last answer is too old.
        """
        if self._generation is None:
            self._take()
        elif self._now() >= self.renewed + within:
            self._renew()
        return self.is_sure

    def release(self) -> None:
        """Give the lease back, so that the next holder need not wait. Raises GoogleError."""
        if self._generation is not None:
            # Forgotten first: whatever the bucket answers, this holder stops acting on it.
            generation, self._generation = self._generation, None
            self._bucket.delete(self._path, generation)

    def _renew(self) -> None:
        # Before the call: the bucket counts from later, so this holder stops first.
        asked, self._renewals = self._now(), self._renewals + 1
        assert self._generation is not None
        try:
            self._bucket.touch(self._path, self._generation, self._summary())
        except Conflict:
            self._lose()
            return
        except GoogleError as error:
            if error.status == 404:
                self._lose()
            elif not self.is_sure:
                raise
            return
        self.renewed = asked

    def _lose(self) -> None:
        self._say(f"another machine {self._right} now")
        self._generation = None

    def _take(self) -> None:
        asked = self._now()
        found, self.other = self._bucket.look(self._path), None
        if found is not None and not self._is_free(found):
            self.other = found
            return
        try:
            self._generation = self._bucket.write(
                self._path,
                b"",
                generation=found.generation if found else 0,
                # A renewal since then changes this alone.
                metageneration=found.metageneration if found else None,
                summary=self._summary(),
            )
        except Conflict:
            return
        self.renewed = asked

    def _is_free(self, found: Item) -> bool:
        is_mine = found.summary.get("id") == self._me.id
        if is_mine or found.age > DURATION or self._is_gone(found.summary):
            return True
        who = f"{found.summary.get('name')} {self._right}"
        if who != self._said:
            self._said = who
            self._say(f"{who}: waiting until it has been silent for {DURATION:.0f} s")
        return False

    def _summary(self) -> dict[str, object]:
        me = {"id": self._me.id, "name": self._me.name, "renewals": self._renewals}
        return records.stamped({**me, "about": self._me.about})


class LeaseError(Exception):
    """Another process trains in the same model directory."""


class Right(Protocol):
    """The right to write a model directory."""

    def confirm(self) -> None:
        """Return once it is sure that this process may write now; else raise LeaseError."""

    def check(self) -> None:
        """Raise LeaseError if this process is known to have lost the lease."""


class NoLease:
    """What a job needs that writes no checkpoints."""

    def confirm(self) -> None:
        """Allow everything."""

    check = confirm


@contextmanager
def hold(
    model_dir: str,
    trains: bool = True,
    open_bucket: Callable[[str], Bucket] = lambda name: Bucket(name, machine_transport()),
) -> Iterator[Right]:
    """Hold `model_dir` for a job that `trains`.

    Raises:
        LeaseError: Another trainer holds it.
        OSError: It can't be written.
    """
    folder = model_dir.rstrip("/")
    if not trains:
        yield NoLease()
    elif folder.startswith("gs://"):
        name = folder.removeprefix("gs://").partition("/")[0]
        mine = BucketLease(folder, open_bucket(name), Process.this_process())
        mine.acquire()
        mine.keep()
        try:
            yield mine
        finally:
            mine.release()
    elif "://" in folder:
        logger.warning("lease: none for %s; make sure that no other process trains there", folder)
        yield NoLease()
    else:
        local = LocalLease(folder, Process.this_process())
        local.acquire()
        try:
            yield local
        finally:
            local.release()


def _since_boot() -> float:
    """Return seconds since the boot, of which time.monotonic() leaves out a VM's suspension."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class BucketLease:
    """The right to write a model directory in a bucket, which one process has at a time.

    Args:
        directory: as gs://BUCKET/PATH.
        bucket: the bucket.
        me: this process.
        now: seconds; they pass while the machine is suspended, too.
        sleep: waits.
    """

    def __init__(
        self,
        directory: str,
        bucket: Bucket,
        me: Process,
        now: Callable[[], float] = _since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory, self._bucket, self._me = directory, bucket, me
        self._now, self._sleep = now, sleep
        self._path = directory.removeprefix("gs://").partition("/")[2] + f"/{FILE_NAME}"
        holder = Holder(me.run, str(me), vars(me))
        right = f"trains in {directory}"
        self._lease = Lease(bucket, self._path, holder, now, _warn, right, _is_gone)
        self._lost = ""
        # The thread that renews and those that write take turns: a core lease is for one thread.
        self._turn = threading.Lock()
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the lease; wait a minute for that of a holder who may be dead.

        Raises:
            LeaseError: Its holder is alive.
            GoogleError: The bucket refuses, or has not answered for minutes.
        """
        seen: Item | None = None
        while not self._ask(self._lease.hold):
            if found := self._lease.other:
                self._refuse_living(seen, found)
                seen = found
            self._sleep(_LOOK_SECONDS)

    def keep(self) -> None:
        """Renew from now on, on a thread."""
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def confirm(self) -> None:
        """Return once the bucket has confirmed that this process still holds the lease.

        While the bucket does not answer it returns, too, as long as no other process may take it.

        Raises:
            LeaseError: This process does not hold it.
            GoogleError: The bucket refuses, or has not answered for minutes.
        """
        # An answer that took too long, as on a VM that was suspended, confirms nothing.
        while not self._ask(lambda: self.renew(FRESH)):
            pass

    def check(self) -> None:
        """Raise LeaseError once another process has the lease, or it was given back."""
        if self._lost:
            raise LeaseError(self._lost)

    def renew(self, within: float = 0.0) -> bool:
        """Renew unless the bucket's last answer is `within` so many seconds; raises as `confirm`.

        It makes one try, and returns whether no other process may hold the lease now.
        """
        with self._turn:
            self.check()
            is_sure = self._lease.hold(within)
            if not self._lease.is_held:
                self._lose()
        self.check()
        return is_sure

    def release(self) -> None:
        """Give the lease back, so that the next holder need not wait."""
        with self._turn:
            self._released.set()
            if self._lost:
                return
            self._lost = given_back(self._directory)
            try:
                self._lease.release()
            except GoogleError as error:
                logger.warning(
                    "lease: not released, so the next training waits for a minute: %s", error
                )

    def _ask(self, call: Callable[[], bool]) -> bool:
        """Return what `call` does, as soon as the bucket answers it."""
        give_up = self._now() + _PATIENCE_SECONDS
        while True:
            try:
                return call()
            except GoogleError as error:
                if not may_pass(error.status) or self._now() > give_up:
                    raise
            self._sleep(_LOOK_SECONDS)

    def _run(self) -> None:
        while not self._lost and not self._released.wait(RENEWAL):
            try:
                self.renew()
            except LeaseError:
                return
            except Exception as error:
                # Such as expired credentials: this thread must not end before the training does.
                logger.warning("lease: not renewed, retrying: %s", error)

    def _refuse_living(self, before: Item | None, found: Item) -> None:
        process = _process_of(found.summary)
        renewed = before is not None and before.generation == found.generation
        if (process and process.is_here()) or (
            renewed and before and before.metageneration != found.metageneration
        ):
            raise LeaseError(
                f"model directory {self._directory}: {_name_of(found)} trains there and renews "
                "its lease; let it finish, stop it, or choose another directory"
            )

    def _lose(self) -> None:
        end = "this process stops writing there, so that two trainers don't mix their checkpoints"
        # Before the look-up, whatever it raises: the next renewal would take a free lease again.
        where = f"model directory {self._directory}"
        self._lost = f"{where}: another process has taken it over; {end}"
        with suppress(Exception):
            found = self._bucket.look(self._path)
            who = f"{_name_of(found)} has taken it over" if found else "its lease was deleted"
            self._lost = f"{where}: {who}; {end}"


def _warn(line: str) -> None:
    logger.warning("lease: %s", line)


def _process_of(summary: Mapping[str, Any]) -> Process | None:
    about = summary.get("about")
    if not isinstance(about, dict):
        return None
    with suppress(records.Unreadable):
        return records.sound(Process, records.stamped(about))
    return None


def _is_gone(summary: Mapping[str, Any]) -> bool:
    process = _process_of(summary)
    return process is not None and process.is_gone()


def _name_of(found: Item) -> str:
    return str(_process_of(found.summary) or "an unknown process")


class LocalLease:
    """The right to write a model directory, which one process has at a time."""

    def __init__(self, directory: str, me: Process) -> None:
        """Hold `directory` as `me`."""
        self._directory, self._me = directory, me
        self._path = os.path.join(directory, FILE_NAME)
        self._file = -1

    def acquire(self) -> None:
        """Lock the directory.

        Raises:
            LeaseError: Another process trains there.
        """
        os.makedirs(self._directory, exist_ok=True)
        self._file = self._lock()
        os.truncate(self._file, 0)
        os.write(self._file, records.dump(self._me))

    def confirm(self) -> None:
        """Raise LeaseError if the lock was given back; before that no other process gets it."""
        if self._file < 0:
            raise LeaseError(given_back(self._directory))

    check = confirm

    def release(self) -> None:
        """End the lock. The file stays: a process that has it open would lock a removed one."""
        os.close(self._file)
        self._file = -1

    def _lock(self) -> int:
        """Return the locked file."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                logger.warning(
                    "lease: the file system of %s has no locks; make sure that no other process "
                    "trains there",
                    self._directory,
                )
                return file
            who = parse(os.read(file, 4096).decode(errors="replace")) or "another process"
            os.close(file)
            raise LeaseError(
                f"model directory {self._directory}: {who} trains there; let it finish, stop "
                "it, or choose another directory"
            ) from error
        return file


def given_back(directory: str) -> str:
    """Say why this process no longer writes to `directory`."""
    return (
        f"model directory {directory}: this process has released its lease and no longer writes "
        "there"
    )
