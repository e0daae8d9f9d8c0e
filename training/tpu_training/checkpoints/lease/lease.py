"""Hold a model directory in a bucket: take the lease, renew it, know when it is lost."""

import logging
import threading
import time
from typing import Protocol

from tpu_training.checkpoints.lease.holder import Holder, given_back, parse_holder
from tpu_training.cluster.bucket_object import Found, NotNow, Taken
from tpu_training.errors import LeaseError

# Whoever has not renewed for so long has lost the lease to the first who asks.
DURATION_SECONDS = 60.0
# A holder stops writing well before, for the sake of a write that is under way.
_SURE_SECONDS = 40.0
_RENEWAL_SECONDS = 10.0
_LOOK_SECONDS = 1.0
# Cloud Storage takes one change of an object a second.
# https://docs.cloud.google.com/storage/quotas#objects
_FRESH_SECONDS = 2.0
# So long a bucket may not answer before a job ends.
_PATIENCE_SECONDS = 300.0

logger = logging.getLogger(__name__)


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
        """Return seconds that go on while the machine is suspended."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class RealTime:
    """The time since the boot, of which time.monotonic() leaves out what a VM was suspended."""

    def now(self) -> float:
        """Return seconds that go on while the machine is suspended."""
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return time.clock_gettime(clock)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class BucketLease:
    """The right to write a model directory, which one process has at a time.

    No machine's clock has a say in it: the bucket says how old a renewal is, and everyone measures
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
            LeaseError: Somebody holds it and is alive.
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
                pass  # Somebody was faster; the next look shows who.
            except NotNow:
                if asked > give_up:
                    raise
            self._clock.sleep(_LOOK_SECONDS)

    def keep(self) -> None:
        """Renew from now on, on a thread."""
        threading.Thread(target=self._run, name="lease", daemon=True).start()

    def confirm(self) -> None:
        """Return once the bucket has just said that this process still holds the lease.

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
                # Nobody else may take the lease before this moment.
                if self._clock.now() < self._asked + _SURE_SECONDS:
                    return
                if self._clock.now() > give_up:
                    raise
                self._clock.sleep(_LOOK_SECONDS)

    def check(self) -> None:
        """Raise LeaseError once somebody else has the lease, or it was given back."""
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
        """Return whether `found` is nobody's any more."""
        holder = parse_holder(found.text)
        if holder and (holder.run == self._me.run or holder.is_gone()):
            return True
        watched = asked - self._seen[1] if self._seen and not _changed(self._seen[0], found) else 0
        return max(found.age, watched) > DURATION_SECONDS

    def _watch(self, found: Found, asked: float) -> None:
        """Remember what was seen when; raise LeaseError if somebody is at work."""
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
            who = "somebody has taken it over"
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
    return holder.describe() if holder else f"somebody who is not named in it ({found.text[:80]!r})"
