"""Faults on request: calls that fail, hang or are slow, and answers that are lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase

from localcloud.core.clock import Clock
from localcloud.core.errors import ApiError
from localcloud.core.store import Store

_KIND = "fault"


class AnswerLost(ConnectionError):
    """The call was carried out, and the connection is to close without an answer."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong, where and how often.

    Attributes:
        method: pattern over method ids, such as `storage.objects.*`.
        resource: pattern over the request's path; `*` for any.
        status: HTTP status to answer, or 0 for none: the call goes through after `delay`, or its
            connection closes if it was `carried_out`.
        message: the error's message; by default one that names the fault.
        delay: seconds to hold the call back first, or its answer if it was `carried_out`.
        carried_out: whether the call takes effect, and only its answer goes wrong. A call that
            would be refused anyway is not hit.
        count: how many calls it hits before it is used up; 0 for all.
        skip: how many matching calls pass before the first one is hit.
        probability: chance that a matching call is hit.
    """

    method: str
    resource: str = "*"
    status: int = 503
    message: str = ""
    delay: float = 0.0
    count: int = 0
    skip: int = 0
    probability: float = 1.0
    carried_out: bool = False

    def problems(self) -> list[str]:
        """Return what is wrong with it, one sentence each."""
        found = []
        if self.status and not 400 <= self.status <= 599:
            found.append(f"status must be 400 to 599, or 0 for none, not {self.status}")
        if not 0 < self.probability <= 1:
            found.append(f"probability must be above 0 and at most 1, not {self.probability}")
        for name, value in (("delay", self.delay), ("count", self.count), ("skip", self.skip)):
            if value < 0:
                found.append(f"{name} must not be negative, but is {value}")
        if not self.status and not self.delay and not self.carried_out:
            found.append("a fault without a status needs a delay")
        return found


class Faults:
    """The faults that are in force, kept in the store.

    Args:
        store: where they are kept.
        clock: holds calls back.
        number: a new number at each call, for their ids.
    """

    def __init__(self, store: Store, clock: Clock, number: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._number = number
        self._random = random.Random(0)

    def add(self, fault: Fault) -> str:
        """Put a fault in force and return its id."""
        key = f"fault-{self._number()}"
        self._store.put(_KIND, key, asdict(fault))
        return key

    def lift(self, key: str) -> None:
        """Lift one fault, unless it is used up already."""
        self._store.delete(_KIND, key)

    def clear(self) -> None:
        """Lift all faults."""
        for key in self._store.keys(_KIND):
            self._store.delete(_KIND, key)

    def items(self) -> list[tuple[str, Fault]]:
        """Return the faults in force by id."""
        return [(key, Fault(**record)) for key, record in self._store.items(_KIND)]

    def inject(self, method: str, path: str, *, carried_out: bool = False) -> None:
        """Let the first fault that fits hit this call, or the answer to a call carried out.

        Raises:
            ApiError: with the fault's status.
            AnswerLost: when there is to be no answer.
        """
        fault = self._take(method, path, carried_out)
        if fault is None:
            return
        if fault.delay:
            self._clock.sleep(fault.delay)
        if fault.status:
            message = fault.message or f"injected fault: {method} answers {fault.status}"
            raise ApiError(fault.status, message)
        if carried_out:
            raise AnswerLost(f"injected fault: the answer to {method} is lost")

    def _take(self, method: str, path: str, carried_out: bool) -> Fault | None:
        with self._store.locked():
            for key, fault in self.items():
                if fault.carried_out != carried_out:
                    continue
                if not fnmatchcase(method, fault.method) or not fnmatchcase(path, fault.resource):
                    continue
                record = asdict(fault)
                if fault.skip:
                    self._store.put(_KIND, key, record | {"skip": fault.skip - 1})
                    continue
                if self._random.random() >= fault.probability:
                    continue
                if fault.count == 1:
                    self._store.delete(_KIND, key)
                elif fault.count:
                    self._store.put(_KIND, key, record | {"count": fault.count - 1})
                return fault
        return None
