"""The right to run jobs on a TPU, which one machine has at a time.

The object's generation changes with each holder, `updated` with each renewal. No machine's clock
has a say in it: the bucket says how old a renewal is, and everyone measures durations only. A
holder whose renewals fail ends its job before another may take the TPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tpu_core import paths
from tpu_core.bucket import Bucket, Conflict, Item
from tpu_core.google import GoogleError
from tpu_core.records import stamped

# Whoever has not renewed for so long has lost the TPU to the first who asks.
DURATION = 60.0
# A holder's job is ended this long after its last renewal: by the runner, or, if that is gone, by
# the supervisor.
SURE = 40.0
RENEWAL = 10.0
# Cloud Storage takes one change of an object a second.
# https://docs.cloud.google.com/storage/quotas#objects
FRESH = 2.0


@dataclass(frozen=True)
class Holder:
    """A machine: its id, which no other has, and its name, for people."""

    id: str
    name: str


class Lease:
    """The lease of one TPU.

    Args:
        store: the bucket.
        tpu: its name.
        me: the machine; it has one runner at a time.
        now: seconds that go on while the machine is suspended.
        say: writes a line for people.
    """

    def __init__(
        self,
        store: Bucket,
        tpu: str,
        me: Holder,
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._store, self._path, self._me = store, paths.lease(tpu), me
        self._now, self._say = now, say
        self._generation: int | None = None
        self._count = 0
        self._asked = 0.0
        self._said = ""

    @property
    def renewed(self) -> float:
        """When the bucket was last asked, of what it has confirmed."""
        return self._asked

    @property
    def is_sure(self) -> bool:
        """Return whether nobody else can have the TPU at this moment."""
        return self._generation is not None and self._now() < self._asked + SURE

    def hold(self, within: float = RENEWAL) -> bool:
        """Return whether this machine has the TPU, after asking the bucket if it is time to.

        Args:
            within: how many seconds old the bucket's last word may be.
        """
        if self._generation is None:
            self._take()
        elif self._now() >= self._asked + within:
            self._renew()
        return self.is_sure

    def _renew(self) -> None:
        asked, self._count = self._now(), self._count + 1
        assert self._generation is not None
        try:
            self._store.touch(self._path, self._generation, self._summary())
        except Conflict:
            self._lose()
            return
        except GoogleError as error:
            if error.status == 404:
                self._lose()
            elif not self.is_sure:
                raise
            return
        self._asked = asked

    def _lose(self) -> None:
        self._say("another machine has taken the TPU over")
        self._generation = None

    def _take(self) -> None:
        asked = self._now()
        found = self._store.look(self._path)
        if found is not None and not self._is_free(found):
            return
        try:
            self._generation = self._store.write(
                self._path,
                b"",
                generation=found.generation if found else 0,
                # A renewal since then changes this alone.
                metageneration=found.metageneration if found else None,
                summary=self._summary(),
            )
        except Conflict:
            return
        self._asked = asked

    def _is_free(self, found: Item) -> bool:
        if found.summary.get("id") == self._me.id or found.age > DURATION:
            return True
        who = f"{found.summary.get('name')} runs the jobs of this TPU"
        if who != self._said:
            self._said = who
            self._say(f"{who}: waiting until it has gone for {DURATION:.0f} s")
        return False

    def _summary(self) -> dict[str, object]:
        return stamped({"id": self._me.id, "name": self._me.name, "renewals": self._count})
