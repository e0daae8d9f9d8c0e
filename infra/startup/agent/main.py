"""Run the agent: `watchdog.py` until the time is up, `watchdog.py wake` to start stopped TPUs.

`watchdog.py jobs` and `watchdog.py try FOLDER` run jobs: see jobs/main.py.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from .google import Bucket, Place
from .jobs import main as jobs
from .ledger import Ledger
from .limits import LimitEnforcer
from .machine import Machine
from .probe import why_silent
from .recovery import Recovery, World

_LOOK_SECONDS = 60
_RECOVERY_SECONDS = 10
# While Google deletes or makes a TPU: the trainer waits for what comes next.
_MAKING_SECONDS = 2
_RETRY_SECONDS = 15


def say(text: str) -> None:
    """Write a line to the journal and the serial port."""
    print(f"tpu-stack limits: {text}", flush=True)


def until_it_works(step: Callable[[], bool]) -> bool:
    """Repeat a step until it works: grants may not count yet, a service may be unavailable."""
    while True:
        try:
            return step()
        except OSError as error:
            say(f"trying again: {error}")
            time.sleep(_RETRY_SECONDS * random.uniform(0.5, 1.0))


def main() -> None:
    """Keep limits and make lost TPUs anew until the time is up, or wake what was stopped."""
    if sys.argv[1:2] in (["jobs"], ["try"]):
        jobs.run(sys.argv)
        return
    machine = Machine()
    bucket = machine.attribute("bucket-url").removeprefix("gs://")
    place = Place(machine.attribute("tpu-project"), machine.attribute("tpu-zone"), bucket)
    ledger = Ledger(Bucket(machine.call, bucket), machine.attribute("training-job"), time.time, say)
    limited, recovered = (
        ledger.listening(machine.call, removal) for removal in ("stopped", "recovering")
    )
    enforcer = LimitEnforcer(place, limited, machine.training, time.time, say)
    if sys.argv[1:] == ["wake"]:
        until_it_works(lambda: enforcer.wake(machine.limits(_LOOK_SECONDS)))
        return
    recovery = Recovery(place, recovered, World(time.time, say, why_silent, random.random))
    seconds = _LOOK_SECONDS

    def look() -> bool:
        nonlocal seconds
        limits = machine.limits(seconds)
        seconds = _LOOK_SECONDS
        if "recovery" in limits:
            recovery.look(limits["tpus"], limits["recovery"], limits.get("request"))
            seconds = _MAKING_SECONDS if recovery.hurries else _RECOVERY_SECONDS
        return enforcer.look(limits) and bool(limits.get("turnOff"))

    while not until_it_works(look):
        pass
    say("turning this machine off")
    machine.turn_off()
