"""The try that runs on this machine now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from . import hosts
from .attempt import Attempt
from .record import Job, Outcome
from .shipping import Shipping
from .store import Store

_TPU_LOOK = 10.0
_HOSTS_LOOK = 5.0


class Current:
    """A try of a job: its folder here, and its log on the way to the bucket."""

    def __init__(self, job: Job, folder: Path, store: Store) -> None:
        """Use the last try of `job`, whose folder lies in `folder`."""
        number = job.tries[-1].number
        self.job = job
        self.attempt = Attempt(folder / f"{job.name}-{number}")
        self.shipping = Shipping(store, self.attempt.log, job.name, number)
        self._tpu_look = self._hosts_look = 0.0
        self._store = store
        self._beat: float | None = None
        self._hosts_since: float | None = None

    def outcome(self) -> Outcome | None:
        """Return how it ended; None while it runs.

        What kills a supervisor along with all that it could say is the end of its machine.
        """
        if (ended := self.attempt.ended()) is not None:
            return ended
        if self.attempt.is_running():
            return None
        # It may have ended between the two looks.
        return self.attempt.ended() or Outcome("preempted", None, "its machine was restarted")

    def follow_tpu(self, now: float, why_lost: Callable[[str], str | None]) -> None:
        """End it if its TPU is gone, at a look from time to time. Raises OSError."""
        if now < self._tpu_look:
            return
        self._tpu_look = now + _TPU_LOOK
        if why := why_lost(self.created):
            self.attempt.end("preempted", why)

    def follow_hosts(self, now: float) -> None:
        """End it if it failed on another host, or one tells nothing. Raises StoreError."""
        if now < self._hosts_look:
            return
        self._hosts_look = now + _HOSTS_LOOK
        if self._hosts_since is None:
            self._hosts_since = now
        count = self.attempt.content().get("hosts", 1)
        if count > 1 and (
            failed := hosts.failure(self._store, self.job, count, now - self._hosts_since)
        ):
            self.attempt.end(failed.why, failed.said, failed.code)

    def beat(self, renewed: float) -> None:
        """Tell the supervisor when the machine last had the TPU for sure."""
        if renewed != self._beat:
            self._beat = renewed
            self.attempt.beat(renewed)

    @property
    def created(self) -> str:
        """When the TPU was made that it runs on."""
        return str(self.attempt.content()["created"])
