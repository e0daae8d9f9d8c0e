"""A right that one holder has at a time (a TPU's jobs, a model directory), by a bucket's object.

The object's generation changes with each holder, `updated` with each renewal. No machine's clock
matters: the bucket says how old a renewal is, and holders measure durations only. A holder whose
renewals fail stops well before another may start (fencing: every write that counts asks `is_sure`
first, or is made on the condition of a generation).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_core.bucket import Bucket, Conflict, Item
from tpu_core.google import GoogleError
from tpu_core.records import stamped

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
        return stamped({**me, "about": self._me.about})
