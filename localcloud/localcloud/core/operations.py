"""Long-running operations: each has an effect, now or later, and a record of its state.

An effect is a function registered by name, so that one that is still to come survives a restart
of the emulator: the store holds its name and arguments.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from localcloud.core.clock import Clock
from localcloud.core.errors import ApiError
from localcloud.core.store import Record, Store

log = logging.getLogger(__name__)

Effect = Callable[..., "Record | None"]
_EFFECTS: dict[str, Effect] = {}
_KIND = "operation"


def effect(name: str) -> Callable[[Effect], Effect]:
    """Register `function(cloud, **arguments)`; what it returns is the operation's response."""

    def register(function: Effect) -> Effect:
        if name in _EFFECTS:
            raise ValueError(f"effect {name} is registered twice")
        _EFFECTS[name] = function
        return function

    return register


@dataclass(frozen=True)
class Work:
    """What an operation does, and when.

    Attributes:
        effect: the name under which the effect is registered. An ApiError that it raises becomes
            the operation's error; what it returns becomes the operation's response.
        arguments: the effect's arguments, beside the cloud.
        seconds: how long the operation takes; 0 for one that is done in its first answer.
    """

    effect: str
    arguments: Record
    seconds: float = 0.0


@effect("report")
def _report(cloud: object, response: Record) -> Record:
    """Return the response of what is already done."""
    return response


class Operations:
    """All operations of the cloud, by key (the path under which clients poll them).

    A record has `about` (what the service shows of it), `started` and `finished`
    (seconds since the epoch), `done`, `response` and `error` (a google.rpc.Status).

    Args:
        store: where they are kept.
        clock: tells the time and runs what is still to come.
        cloud: the first argument of every effect.
    """

    def __init__(self, store: Store, clock: Clock, cloud: object) -> None:
        self._store = store
        self._clock = clock
        self._cloud = cloud
        # Numbers are taken more slowly than microseconds pass, so a restart begins beyond the last.
        self._sequence = itertools.count(int(clock.now() * 1e6))

    def number(self) -> int:
        """Return a number that no earlier operation or resource had."""
        return next(self._sequence)

    def start(self, key: str, work: Work, about: Record | None = None) -> Record:
        """Do the work when its seconds have passed; at once, inside this call, when it has none."""
        now = self._clock.now()
        record: Record = {
            "about": about or {},
            "effect": work.effect,
            "arguments": work.arguments,
            "started": now,
            "due": now + work.seconds,
            "done": False,
        }
        self._store.put(_KIND, key, record)
        if work.seconds > 0:
            self._clock.at(record["due"], partial(self._finish, key))
        else:
            self._finish(key)
        return self._store.get(_KIND, key) or record

    def report(self, key: str, response: Record) -> Record:
        """Keep an operation that was done before it was asked about."""
        return self.start(key, Work("report", {"response": response}))

    def get(self, key: str) -> Record | None:
        """Return the operation's record, or None."""
        return self._store.get(_KIND, key)

    def load(self, key: str, missing: Exception) -> Record:
        """Return the operation's record; raise `missing` when there is none."""
        return self._store.load(_KIND, key, missing)

    def items(self, prefix: str) -> list[tuple[str, Record]]:
        """Return operations whose key begins with `prefix`."""
        return self._store.items(_KIND, prefix)

    def delete(self, key: str) -> bool:
        """Forget an operation; its effect, if still to come, is called off."""
        return self._store.delete(_KIND, key)

    def resume(self) -> None:
        """Plan again what was still to come when the emulator stopped."""
        for key, record in self._store.items(_KIND):
            if not record["done"]:
                self._clock.at(record["due"], partial(self._finish, key))

    def _finish(self, key: str) -> None:
        record = self._store.get(_KIND, key)
        if record is None or record["done"]:
            return
        try:
            record["response"] = _EFFECTS[record["effect"]](self._cloud, **record["arguments"])
        except ApiError as error:
            record["error"] = error.rpc_status() | {"http": error.code, "reason": error.reason}
        except Exception as error:
            log.exception("operation %s failed inside the emulator", key)
            record["error"] = ApiError(500, f"Internal error: {error}").rpc_status()
        record["done"] = True
        record["finished"] = self._clock.now()
        self._store.put(_KIND, key, record)
