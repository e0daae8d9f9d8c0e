"""The lease of a model directory: two trainers never write one directory at the same time.

In a bucket it is `tpu_core.lease`, renewed on a thread: what is written after the lease was lost
would mix two trainers' checkpoints, so each write asks `confirm` first. In a folder it is a lock of
the file system, which ends with its process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from tpu_core import lease, records
from tpu_core.bucket import Bucket, Item
from tpu_core.google import GoogleError, may_pass
from tpu_core.process import Process, parse
from tpu_training.cluster import google
from tpu_training.errors import AccessError, LeaseError

_FILE_NAME = "lease.json"
_LOOK_SECONDS = 1.0
# A job ends if the bucket does not answer for so long.
_PATIENCE_SECONDS = 300.0
# Some network file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

logger = logging.getLogger(__name__)


class Lease(Protocol):
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
def hold(model_dir: str, trains: bool = True) -> Iterator[Lease]:
    """Hold `model_dir` for a job that `trains`.

    Raises:
        LeaseError: Another trainer holds it.
    """
    folder = model_dir.rstrip("/")
    if not trains:
        yield NoLease()
    elif folder.startswith("gs://"):
        name = folder.removeprefix("gs://").partition("/")[0]
        mine = BucketLease(folder, google.bucket(name), Process.this_process())
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
        self._path = directory.removeprefix("gs://").partition("/")[2] + f"/{_FILE_NAME}"
        holder = lease.Holder(me.run, str(me), vars(me))
        self._lease = lease.Lease(
            bucket, self._path, holder, now, _log, f"trains in {directory}", _is_gone
        )
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
        while not self._ask(lambda: self.renew(lease.FRESH)):
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
        while not self._lost and not self._released.wait(lease.RENEWAL):
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
                f"--model-dir={self._directory}: {_name_of(found)} trains there and renews its "
                "lease; let it finish, stop it, or choose another --model-dir"
            )

    def _lose(self) -> None:
        end = "this process stops writing there, so that two trainers don't mix their checkpoints"
        # Before the look-up, whatever it raises: the next renewal would take a free lease again.
        self._lost = f"--model-dir={self._directory}: another process has taken it over; {end}"
        with suppress(GoogleError, AccessError):
            found = self._bucket.look(self._path)
            who = f"{_name_of(found)} has taken it over" if found else "its lease was deleted"
            self._lost = f"--model-dir={self._directory}: {who}; {end}"


def _log(line: str) -> None:
    logger.info("lease: %s", line)


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
        self._path = os.path.join(directory, _FILE_NAME)
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
                f"--model-dir={self._directory}: {who} trains there; let it finish, stop it, or "
                "choose another --model-dir"
            ) from error
        return file


def given_back(directory: str) -> str:
    """Say why this process no longer writes to `directory`."""
    return (
        f"--model-dir={directory}: this process has released its lease and no longer writes there"
    )
