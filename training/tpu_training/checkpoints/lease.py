"""The lease of a model directory: two trainers never write one directory at the same time."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

from tpu_training.cluster.google import BucketObject, Found, NotNow, Taken, bucket_tokens
from tpu_training.errors import LeaseError

_OBJECT_NAME = "lease.json"

# A lease that was not renewed for so long goes to the first process that asks.
DURATION_SECONDS = 60.0
# A holder stops writing well before that: a write may be under way.
_SURE_SECONDS = 40.0
_RENEWAL_SECONDS = 10.0
_LOOK_SECONDS = 1.0
# Cloud Storage takes one change of an object a second.
# https://docs.cloud.google.com/storage/quotas#objects
_FRESH_SECONDS = 2.0
# A job ends if the bucket does not answer for so long.
_PATIENCE_SECONDS = 300.0
_FILE_NAME = "lease.json"
# Some network file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FORMAT = 1
_PROC = Path("/proc")

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

    def check(self) -> None:
        """Allow everything."""


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
        there = BucketObject(f"{folder}/{_OBJECT_NAME}", bucket_tokens())
        lease = BucketLease(folder, there, Holder.this_process())
        lease.acquire()
        lease.keep()
        try:
            yield lease
        finally:
            lease.release()
    elif "://" in folder:
        logger.warning("lease: none for %s: take care that no other job trains there", folder)
        yield NoLease()
    else:
        local = LocalLease(folder, Holder.this_process())
        local.acquire()
        try:
            yield local
        finally:
            local.release()


class LeaseObject(Protocol):
    """What a lease needs of BucketObject."""

    def read(self) -> Found | None:
        """Return the object."""

    def put(self, text: str, generation: int = 0, metageneration: int | None = None) -> int:
        """Create or replace it."""

    def renew(self, generation: int, count: int) -> None:
        """Renew it."""

    def delete(self, generation: int) -> None:
        """Delete it."""


class Time(Protocol):
    """What a lease needs to know of time."""

    def now(self) -> float:
        """Return seconds; they pass while the machine is suspended, too."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class RealTime:
    """The time since the boot, of which time.monotonic() leaves out what a VM was suspended."""

    def now(self) -> float:
        """Return seconds; they pass while the machine is suspended, too."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class BucketLease:
    """The right to write a model directory, which one process has at a time.

    No machine's clock matters: the bucket says how old a renewal is, and processes measure
    durations only. A holder whose renewals fail stops writing before another may start.
    """

    def __init__(
        self, directory: str, there: LeaseObject, me: Holder, clock: Time | None = None
    ) -> None:
        """Hold `directory` as `me` by the object `there`."""
        self._directory = directory
        self._there, self._me = there, me
        self._clock = clock or RealTime()
        self._generation = 0
        self._renewals = 0
        self._asked = -_SURE_SECONDS
        self._seen: tuple[Found, float] | None = None
        self._lost: str | None = None
        self._one_at_a_time = threading.Lock()
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the lease; wait for that of a holder who may be dead.

        Raises:
            LeaseError: Its holder is alive.
        """
        give_up = self._clock.now() + _PATIENCE_SECONDS
        while True:
            asked = self._clock.now()
            try:
                found = self._there.read()
                if found is None or self._is_free(found, asked):
                    self._take(found, asked)
                    return
                self._watch(found, asked)
            except Taken:
                pass  # Another process was faster; the next look shows which.
            except NotNow:
                if asked > give_up:
                    raise
            self._clock.sleep(_LOOK_SECONDS)

    def keep(self) -> None:
        """Renew from now on, on a thread."""
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def confirm(self) -> None:
        """Return once the bucket has confirmed that this process still holds the lease.

        Raises:
            LeaseError: It does not.
            NotNow: The bucket has not answered for minutes.
        """
        give_up = self._clock.now() + _PATIENCE_SECONDS
        while True:
            self.check()
            if self._clock.now() < self._asked + _FRESH_SECONDS:
                return
            try:
                self.renew()
            except NotNow:
                # No other process may take the lease before this moment.
                if self._clock.now() < self._asked + _SURE_SECONDS:
                    return
                if self._clock.now() > give_up:
                    raise
                self._clock.sleep(_LOOK_SECONDS)

    def check(self) -> None:
        """Raise LeaseError once another process has the lease, or it was given back."""
        if self._lost:
            raise LeaseError(self._lost)

    def renew(self) -> None:
        """Renew once.

        Raises:
            NotNow: The bucket does not answer; see `confirm`.
        """
        with self._one_at_a_time:
            if self._released.is_set():
                return
            asked = self._clock.now()
            self._renewals += 1
            try:
                self._there.renew(self._generation, self._renewals)
            except Taken:
                self._lost = self._who_took_it()
                return
            self._asked = asked

    def release(self) -> None:
        """Give the lease back, so that the next holder need not wait."""
        with self._one_at_a_time:
            self._released.set()
            if self._lost:
                return
            self._lost = given_back(self._directory)
            try:
                self._there.delete(self._generation)
            except (NotNow, Taken) as error:
                logger.warning("lease: not given back; the next job waits for a minute: %s", error)

    def _run(self) -> None:
        while not self._lost and not self._released.wait(_RENEWAL_SECONDS):
            try:
                self.renew()
            except Exception as error:
                # Such as expired credentials: this thread must not end before the training does.
                logger.warning("lease: not renewed, trying again: %s", error)

    def _is_free(self, found: Found, asked: float) -> bool:
        """Return whether the holder of `found` has lost the lease."""
        holder = parse_holder(found.text)
        if holder and (holder.run == self._me.run or holder.is_gone()):
            return True
        watched = asked - self._seen[1] if self._seen and not _changed(self._seen[0], found) else 0
        return max(found.age, watched) > DURATION_SECONDS

    def _watch(self, found: Found, asked: float) -> None:
        """Remember what was seen when; raise LeaseError if the holder is alive."""
        before = self._seen[0] if self._seen else None
        holder = parse_holder(found.text)
        if (holder and holder.is_here()) or (before and _renewed(before, found)):
            raise LeaseError(
                f"--model-dir={self._directory}: {_describe(found)} trains there and renews its "
                "lease; let it finish or stop it first, or give another --model-dir"
            )
        if before is None or _changed(before, found):
            self._seen = (found, asked)
            logger.info(
                "lease: %s is held by %s; waiting for up to %.0f s to see whether it is alive",
                self._directory,
                _describe(found),
                DURATION_SECONDS - found.age,
            )

    def _take(self, found: Found | None, asked: float) -> None:
        text = self._me.to_json()
        if found is None:
            self._generation = self._there.put(text)
        else:
            logger.info("lease: taken over from %s", _describe(found))
            self._generation = self._there.put(text, found.generation, found.metageneration)
        self._asked = asked

    def _who_took_it(self) -> str:
        try:
            found = self._there.read()
            who = f"{_describe(found)} has taken it over" if found else "its lease was deleted"
        except (NotNow, Taken):
            who = "another process has taken it over"
        return (
            f"--model-dir={self._directory}: {who}; this process writes nothing more there, so "
            "that two trainers don't mix their checkpoints"
        )


def _changed(before: Found, now: Found) -> bool:
    return before.generation != now.generation or _renewed(before, now)


def _renewed(before: Found, now: Found) -> bool:
    return before.generation == now.generation and before.metageneration != now.metageneration


def _describe(found: Found) -> str:
    holder = parse_holder(found.text)
    return holder.describe() if holder else f"an unknown process ({found.text[:80]!r})"


class LocalLease:
    """The right to write a model directory, which one process has at a time."""

    def __init__(self, directory: str, me: Holder) -> None:
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
        while self._file < 0:
            self._file = self._lock()
        os.truncate(self._file, 0)
        os.write(self._file, self._me.to_json().encode())

    def confirm(self) -> None:
        """Raise LeaseError if the lock was given back; before that no other process gets it."""
        if self._file < 0:
            raise LeaseError(given_back(self._directory))

    check = confirm

    def release(self) -> None:
        """Remove the file while it is locked, then the lock."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)
        self._file = -1

    def _lock(self) -> int:
        """Return the locked file; -1 if its last holder removed it in the meantime."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = parse_holder(os.read(file, 4096).decode(errors="replace"))
            if error.errno in _NO_LOCKS:
                logger.warning(
                    "lease: the file system of %s has no locks: take care that no other job "
                    "trains there",
                    self._directory,
                )
                return file
            os.close(file)
            who = holder.describe() if holder else "another process"
            raise LeaseError(
                f"--model-dir={self._directory}: {who} trains there; let it finish or stop it "
                "first, or give another --model-dir"
            ) from error
        if _is_same(file, self._path):
            return file
        os.close(file)
        return -1


def _is_same(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Holder:
    """A process that trains.

    Attributes:
        run: Different for each process that ever held a lease.
        machine: The machine's name, for people.
        process: The process's number.
        place: The boot and the process namespace in which `process` is a number; empty if unknown.
        began: When the process began, in ticks since the boot; empty if unknown.
        since: When it asked for the lease, by its own clock, for people.
    """

    run: str
    machine: str
    process: int
    place: str
    began: str
    since: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return this process."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, process: int) -> Holder:
        """Return a process of this machine."""
        since = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return cls(
            uuid.uuid4().hex, socket.gethostname(), process, place(), began(process) or "", since
        )

    def to_json(self) -> str:
        """Return the text that is kept with the lease."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"

    def describe(self) -> str:
        """Name the process in a message."""
        return f"process {self.process} on {self.machine} (since {self.since})"

    def is_gone(self) -> bool:
        """Return whether it is known to have ended; of another machine nothing is known."""
        return self._was_here() and began(self.process) != self.began

    def is_here(self) -> bool:
        """Return whether it is known to run on this machine."""
        return self._was_here() and began(self.process) == self.began

    def _was_here(self) -> bool:
        return bool(self.place and self.began) and self.place == place()


def parse_holder(text: str) -> Holder | None:
    """Return the holder in a lease's text; None if it is damaged or of another format."""
    try:
        content = json.loads(text)
        if content.get("format") != _FORMAT:
            return None
        fields = {field.name: content[field.name] for field in dataclasses.fields(Holder)}
        return Holder(**fields | {"process": int(fields["process"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def given_back(directory: str) -> str:
    """Say why this process no longer writes to `directory`."""
    return f"--model-dir={directory}: this process has ended its lease and writes nothing there now"


def place() -> str:
    """Return the boot and the process namespace of this process; empty if unknown."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # Containers on one machine share the boot but not the numbers of processes.
        return f"{boot} {(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def began(process: int) -> str | None:
    """Return when a process began, in ticks since the boot; None if none lives (or a zombie)."""
    try:
        text = (_PROC / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # proc(5): the name, which may hold anything, is in parentheses; state is field 3, start 22.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
