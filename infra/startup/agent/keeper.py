"""Keep limits and recreate lost TPUs, each in a thread of its own, as the metadata says."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from infra.startup.agent.google import Json
from infra.startup.agent.tpunames import Place, look_up, state_of

from .causes import cause_of
from .endings import TpuState, tpu_state
from .limits import LimitEnforcer
from .machine import Machine
from .recovery import Recovery

_LOOK_SECONDS = 60
# A kill of a TPU is noticed within 3 s, at a quarter of what the agent may cost.
_RECOVERY_SECONDS = 2.5
# While Google deletes or makes a TPU: the trainer waits for what comes next.
_MAKING_SECONDS = 1.0
_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 15.0, 120.0
_T = TypeVar("_T")


class Keeper:
    """Looks at the metadata and the TPUs in turns.

    `keep` and `recover` have a thread each, so that no failure of recovery stops the limits.
    Everything else is for other threads.

    Args:
        machine: that this runs on.
        place: where the TPUs are.
        say: writes a line to the journal and the serial port.
    """

    enforcer: LimitEnforcer
    recovery: Recovery

    def __init__(self, machine: Machine, place: Place, say: Callable[[str], None]) -> None:
        self.place = place
        self.trains: Callable[[], bool] = lambda: False
        """Whether the trainer runs."""
        self._machine, self._say = machine, say
        self._limits: Json = {}
        self._recovering = threading.Lock()
        self._bell = threading.Event()
        self._found = TpuState(None)

    def training(self) -> bool:
        """Return whether anything trains on this machine."""
        return self.trains() or self._machine.trains_otherwise()

    def stands(self) -> bool:
        """Return whether a TPU is READY, which costs its price. Raises OSError."""
        found = (look_up(self.place, self._machine.call, name) for name in self._machine.tpus())
        return any(status == 200 and node.get("state") == "READY" for _, status, node in found)

    def budgets(self) -> Mapping[str, int] | None:
        """Return failures and preemptions a day; None where lost TPUs are not made anew."""
        return self._limits.get("recovery")

    def wake(self) -> None:
        """Start TPUs that were stopped: there is something to train."""
        self.until_it_works(lambda: self.enforcer.wake(self._machine.limits(_LOOK_SECONDS)))

    def keep(self) -> None:
        """Keep limits until the time is up; return at once where none are set."""
        if not self.until_it_works(self._machine.has_limits):
            return
        while not self.until_it_works(self._enforce):
            pass
        self._say("turning this machine off")
        self.until_it_works(self._machine.turn_off)

    def recover(self) -> None:
        """Recreate lost TPUs for ever, while the metadata asks for it."""
        while True:
            self._bell.wait(self.until_it_works(self._recover))
            self._bell.clear()

    def _enforce(self) -> bool:
        """Wait for other limits or for the next look's time, and look."""
        limits = self._machine.limits(_LOOK_SECONDS)
        if limits != self._limits:
            self._limits = limits
            self._bell.set()
        ended = self.enforcer.look(limits) or self.recovery.ended
        return ended and bool(limits.get("turnOff"))

    def _recover(self) -> float:
        """Look once; return the seconds until the next look."""
        limits = self._limits
        if "recovery" not in limits:
            return _LOOK_SECONDS
        with self._recovering:
            self.recovery.look(
                limits["tpus"],
                limits["recovery"],
                limits.get("request"),
                limits.get("zoneMinutes", 0.0),
                limits.get("timeToLiveHours", float("inf")),
            )
            return _MAKING_SECONDS if self.recovery.hurries else _RECOVERY_SECONDS

    def renew(self, why: str) -> None:
        """Make the trainer's TPUs anew, which look healthy and are not. Raises OSError."""
        limits = self._limits
        if "recovery" in limits:
            with self._recovering:
                self.recovery.renew(limits["tpus"], limits["recovery"], limits.get("request"), why)
            self._bell.set()

    def sleep(self) -> None:
        """Let TPUs that a limit is about to delete come back for the next job. Raises OSError."""
        limits = self._limits
        if "recovery" in limits:
            with self._recovering:
                self.recovery.sleep(limits["tpus"], limits.get("request"))

    def tpu_state(self) -> TpuState:
        """Return what keeps the trainer's TPUs from work, and ring if that is new. Raises OSError.

        A trainer that has lost its TPU is the first to know.
        """
        found = self._tpu_state()
        if found != self._found:
            self._found = found
            self._bell.set()
        return found

    def _tpu_state(self) -> TpuState:
        recovered = self.budgets() is not None
        for name in self._machine.tpus():
            _, status, node = look_up(self.place, self._machine.call, name)
            if status not in (200, 404):
                raise OSError(f"{cause_of(status, node)}, HTTP status {status} for {name}")
            state = state_of(node) if status == 200 else None
            found = tpu_state(name, state, str(node.get("health", "")), recovered=recovered)
            if found.ending is not None:
                return found
        return TpuState(None)

    def until_it_works(self, step: Callable[[], _T]) -> _T:
        """Repeat a step until it works: grants may not count yet, a service may be unavailable.

        Whatever goes wrong, a machine that costs is not left alone.
        """
        pause, said = _RETRY_SECONDS, ""
        while True:
            try:
                return step()
            except Exception as error:
                if said != (text := str(error) or repr(error)):
                    said = text
                    self._say(f"trying again: {said}")
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(_LONGEST_RETRY_SECONDS, 2.0 * pause)
