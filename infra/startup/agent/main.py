"""Run the agent: `agent.py` until it is told to end, `agent.py wake` to start stopped TPUs.

`agent.py jobs`, `try FOLDER` and `managed BUCKET JOB` run jobs: see jobs/main.py.
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
from functools import partial

from infra.startup.agent.google import Bucket
from infra.startup.agent.tpunames import Place

from . import port
from .events import Ceiling, Events
from .jobs import main as jobs
from .keeper import Keeper
from .ledger import Ledger
from .limits import LimitEnforcer
from .machine import BASE, Machine, oom_kills
from .probe import why_silent
from .recovery import Recovery
from .trainer import Surroundings, Trainer
from .world import World

_COST_SECONDS, _RETRY_SECONDS = 60.0, 5.0


def say(text: str) -> None:
    """Write a line of the limits to the journal and the serial port."""
    print(f"tpu-stack agent: {text}", flush=True)


def say_of_trainer(text: str) -> None:
    """Write a line of the trainer's to the journal and the serial port."""
    print(f"tpu-stack: {text}", flush=True)


def main() -> None:
    """Run the trainer, keep limits and make lost TPUs anew; or wake what was stopped."""
    if sys.argv[1:2] in (["jobs"], ["try"], ["managed"]):
        jobs.run(sys.argv)
        return
    machine = Machine()
    events = Events(machine.optional, machine.call, say)
    keeper = _keeper(machine, events)
    if sys.argv[1:] == ["wake"]:
        keeper.wake()
        return
    # First, and whatever becomes of the rest, what ends costs.
    threading.Thread(target=lambda: _or_die(keeper.keep), name="limits", daemon=True).start()
    threading.Thread(target=lambda: _or_die(keeper.recover), name="recovery", daemon=True).start()
    add = partial(_add_costs, machine, keeper, events)
    threading.Thread(target=add, name="cost", daemon=True).start()
    if machine.optional("tpu-runs-training") is None:
        world = World(
            time.time, say_of_trainer, why_silent, random.random, partial(events.report, "endpoint")
        )
        about = keeper.place, machine.call, machine.tpus()[0], world, time.sleep
        threading.Thread(target=port.watch, args=about, daemon=True).start()
    _run(keeper.until_it_works(lambda: _trainer(machine, keeper, events)))


def _add_costs(machine: Machine, keeper: Keeper, events: Events) -> None:
    """Add up what the stack costs forever, if the stack has a ceiling for it."""
    name = keeper.place.bucket

    def tell(text: str) -> None:
        events.report("cost", f"{text}\ngs://{name}")

    ceiling = Ceiling(Bucket(machine.call, name), keeper.stands, time.time, tell)
    while True:
        try:
            if cost := events.settings.get("cost"):
                ceiling.look(cost)
        except Exception as error:  # Whatever it is: a sum is not worth an agent.
            say(f"costs are not added up: {error}")
        time.sleep(_COST_SECONDS)


def _keeper(machine: Machine, events: Events) -> Keeper:
    bucket = machine.attribute("bucket-url").removeprefix("gs://")
    project, zone = machine.attribute("tpu-project"), machine.attribute("tpu-zone")
    place = Place(project, zone, bucket, machine.further_zones)
    ledger = Ledger(Bucket(machine.call, bucket), machine.attribute("training-job"), time.time, say)
    limited, recovered = (
        ledger.listening(machine.call, removal) for removal in ("stopped", "recovering")
    )
    tell = partial(events.report, "recovery")
    world = World(time.time, say, why_silent, random.random, tell)
    keeper = Keeper(machine, place, say)
    keeper.enforcer = LimitEnforcer(
        place,
        limited,
        keeper.training,
        time.time,
        say,
        partial(events.report, "limits"),
        keeper.sleep,
    )
    keeper.recovery = Recovery(place, recovered, world)
    return keeper


def _trainer(machine: Machine, keeper: Keeper, events: Events) -> Trainer:
    bucket = Bucket(machine.call, keeper.place.bucket)

    def finish(path: str) -> None:
        bucket.write(path, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")

    job = machine.attribute("training-job")

    def tell(text: str) -> None:
        events.report(
            "training", f"the training {job} {text}\ngs://{keeper.place.bucket}/jobs/{job}"
        )

    around = Surroundings(
        now=time.time,
        say=say_of_trainer,
        tell=tell,
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
    trainer = Trainer(BASE / "trainer", around)
    keeper.trains = lambda: trainer.running
    return trainer


def _run(trainer: Trainer) -> None:
    """Look after the trainer in this thread, which hears signals, until the agent shall end."""
    wake = _Alarm()
    while not wake.told_to_end(_look(trainer)):
        pass
    trainer.stop()


def _look(trainer: Trainer) -> float:
    """Look after the trainer, and return the pause; no failure, as of a full disk, ends limits."""
    try:
        return trainer.look()
    except Exception:
        traceback.print_exc()
        return _RETRY_SECONDS


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
