"""Run the agent: `watchdog.py` until it is told to end, `watchdog.py wake` to start stopped TPUs.

`watchdog.py jobs`, `try FOLDER` and `managed BUCKET JOB` run jobs: see jobs/main.py.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from .google import Bucket, Place
from .jobs import main as jobs
from .keeper import Keeper
from .ledger import Ledger
from .limits import LimitEnforcer
from .machine import Machine, oom_kills
from .probe import why_silent
from .recovery import Recovery, World
from .trainer import Surroundings, Trainer
from .webhook import quietly, teller

_FOLDER = Path(sys.argv[0]).parent


def say(text: str) -> None:
    """Write a line of the limits to the journal and the serial port."""
    print(f"tpu-stack limits: {text}", flush=True)


def say_of_trainer(text: str) -> None:
    """Write a line of the trainer's to the journal and the serial port."""
    print(f"tpu-stack: {text}", flush=True)


def main() -> None:
    """Run the trainer, keep limits and make lost TPUs anew; or wake what was stopped."""
    if sys.argv[1:2] in (["jobs"], ["try"], ["managed"]):
        jobs.run(sys.argv)
        return
    machine = Machine()
    keeper = _keeper(machine)
    if sys.argv[1:] == ["wake"]:
        keeper.wake()
        return
    _run(_trainer(machine, keeper), keeper)


def _keeper(machine: Machine) -> Keeper:
    bucket = machine.attribute("bucket-url").removeprefix("gs://")
    project, zone = machine.attribute("tpu-project"), machine.attribute("tpu-zone")
    place = Place(project, zone, bucket, machine.further_zones)
    ledger = Ledger(Bucket(machine.call, bucket), machine.attribute("training-job"), time.time, say)
    limited, recovered = (
        ledger.listening(machine.call, removal) for removal in ("stopped", "recovering")
    )
    world = World(time.time, say, why_silent, random.random)
    keeper = Keeper(machine, place, say)
    tell = quietly(teller(machine.optional, machine.call), say)
    keeper.enforcer = LimitEnforcer(place, limited, keeper.training, time.time, say, tell)
    keeper.recovery = Recovery(place, recovered, world)
    return keeper


def _trainer(machine: Machine, keeper: Keeper) -> Trainer:
    bucket = Bucket(machine.call, keeper.place.bucket)

    def finish(path: str) -> None:
        bucket.write(path, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")

    around = Surroundings(
        now=time.time,
        say=say_of_trainer,
        chance=random.random,
        tpu=keeper.tpu_state,
        renew=keeper.renew,
        going_down=lambda: machine.entry("preempted") == "TRUE",
        budgets=keeper.budgets,
        finish=finish,
        environment=machine.trainer_environment,
        arguments=machine.trainer_arguments,
        oom_kills=oom_kills,
    )
    trainer = Trainer(_FOLDER / "trainer", around)
    keeper.trains = lambda: trainer.running
    return trainer


def _run(trainer: Trainer, keeper: Keeper) -> None:
    """Look after the trainer in this thread, which hears signals, and after limits in another."""
    wake = _Alarm()
    threading.Thread(target=lambda: _or_die(keeper.keep), name="limits", daemon=True).start()
    while not wake.told_to_end(trainer.look()):
        pass
    trainer.stop()


def _or_die(work: Callable[[], None]) -> None:
    """Let the whole agent end with a thread that fails: systemd starts it again."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class _Alarm:
    """Wakes the main thread when a child ends, and when the machine goes down."""

    def __init__(self) -> None:
        self._bell, ringer = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(ringer, False)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def told_to_end(self, seconds: float) -> bool:
        """Wait until something happens, or so long; return whether the agent shall end."""
        select.select([self._bell], [], [], seconds)
        try:
            heard = os.read(self._bell, 4096)
        except BlockingIOError:
            return False
        return bool({signal.SIGTERM, signal.SIGINT} & set(heard))
