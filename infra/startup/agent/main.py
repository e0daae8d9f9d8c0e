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

from . import port
from .ceiling import Ceiling
from .google import Bucket, Place
from .jobs import main as jobs
from .keeper import Keeper
from .ledger import Ledger
from .limits import LimitEnforcer
from .machine import BASE, Machine, oom_kills
from .messages import senders, wanted
from .outbox import Outbox
from .probe import why_silent
from .recovery import Recovery
from .trainer import Surroundings, Trainer
from .world import World

_TELL_SECONDS, _RETRY_SECONDS = 60.0, 5.0


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
    outbox = Outbox(
        BASE / "outbox", senders(machine.optional, machine.call), time.time, say_of_trainer
    )
    keeper = _keeper(machine, outbox)
    if sys.argv[1:] == ["wake"]:
        keeper.wake()
        return
    # First, and whatever becomes of the rest, what ends costs.
    threading.Thread(target=lambda: _or_die(keeper.keep), name="limits", daemon=True).start()
    threading.Thread(target=lambda: _or_die(keeper.recover), name="recovery", daemon=True).start()
    tell = _teller(machine, keeper, outbox)
    threading.Thread(target=tell, name="messages", daemon=True).start()
    if machine.optional("tpu-runs-training") is None:
        world = World(time.time, say_of_trainer, why_silent, random.random, outbox.tell)
        about = keeper.place, machine.call, machine.tpus()[0], world, time.sleep
        threading.Thread(target=port.watch, args=about, daemon=True).start()
    _run(keeper.until_it_works(lambda: _trainer(machine, keeper, outbox)))


def _teller(machine: Machine, keeper: Keeper, outbox: Outbox) -> Callable[[], None]:
    """Return what tells whatever waits to be told, and of the ceiling, for ever."""
    name = keeper.place.bucket
    bucket = Bucket(machine.call, name)
    ceiling = Ceiling(
        bucket, keeper.stands, time.time, lambda text: outbox.tell(f"{text}\ngs://{name}")
    )

    def tell() -> None:
        while True:
            try:
                outbox.flush()
                if cost := wanted(machine.optional).get("cost"):
                    ceiling.look(cost)
            except Exception as error:  # Of whatever kind: no message is worth an agent.
                say(f"messages or what is spent: {error}")
            time.sleep(_TELL_SECONDS)

    return tell


def _keeper(machine: Machine, outbox: Outbox) -> Keeper:
    bucket = machine.attribute("bucket-url").removeprefix("gs://")
    project, zone = machine.attribute("tpu-project"), machine.attribute("tpu-zone")
    place = Place(project, zone, bucket, machine.further_zones)
    ledger = Ledger(Bucket(machine.call, bucket), machine.attribute("training-job"), time.time, say)
    limited, recovered = (
        ledger.listening(machine.call, removal) for removal in ("stopped", "recovering")
    )
    world = World(time.time, say, why_silent, random.random, outbox.tell)
    keeper = Keeper(machine, place, say)
    keeper.enforcer = LimitEnforcer(
        place, limited, keeper.training, time.time, say, outbox.tell, keeper.sleep
    )
    keeper.recovery = Recovery(place, recovered, world)
    return keeper


def _trainer(machine: Machine, keeper: Keeper, outbox: Outbox) -> Trainer:
    bucket = Bucket(machine.call, keeper.place.bucket)

    def finish(path: str) -> None:
        bucket.write(path, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n")

    job = machine.attribute("training-job")

    def tell(text: str) -> None:
        outbox.tell(f"the training {job} {text}\ngs://{keeper.place.bucket}/jobs/{job}")

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
