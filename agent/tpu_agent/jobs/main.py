"""The processes of the queue: the runner (`jobs`), one attempt (`try FOLDER`), Vertex AI's.

In a container of Vertex AI, `managed BUCKET JOB` runs one job.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tpu_agent.events import Events
from tpu_agent.jobs import vertex
from tpu_agent.jobs.attempt import now, supervise
from tpu_agent.jobs.hosts import Host
from tpu_agent.jobs.hosts import World as HostWorld
from tpu_agent.jobs.identity import Identity, JobMetadata
from tpu_agent.jobs.runner import Runner, Tpus, World
from tpu_agent.machine import Machine
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.contract import AS_ROOT, Environment, Metadata
from tpu_core.google import MachineToken, Transport
from tpu_core.lease import Holder
from tpu_core.records import dump

_STEP_SECONDS = 0.25
_RETRY_SECONDS = 5.0
# A try repeats its own calls, as nothing else does.
_PATIENCE_SECONDS = 60.0


def say(text: str) -> None:
    """Write a line to the journal and the serial port."""
    print(f"tpu-stack jobs: {text}", flush=True)


def run(arguments: list[str]) -> None:
    """Do what the agent's arguments say, the first of which is the agent's own file."""
    if arguments[1] == "try":
        _run_try(Path(arguments[2]))
    elif arguments[1] == "managed":
        bucket, name = arguments[2:4]
        sys.exit(vertex.run(Path(arguments[0]), bucket, name, _store_of(Machine())))
    else:
        _run_jobs(Path(arguments[0]), is_here=arguments[2:] == ["here"])


def _run_try(folder: Path) -> None:
    """Run one attempt, as the process that `Attempt.start` starts."""
    machine, account = Machine(), os.environ.get(Environment.JOB_ACCOUNT, AS_ROOT)
    server = (
        JobMetadata(account, machine.client.call, machine.metadata) if account != AS_ROOT else None
    )
    supervise(folder, _store_of(machine), Identity(server))


def _store_of(machine: Machine) -> Callable[[str], Bucket]:
    """Return what opens a bucket by its name, as the machine's account."""
    return lambda name: Bucket(name, Transport(MachineToken(machine.entry), _PATIENCE_SECONDS))


def _run_jobs(program: Path, *, is_here: bool) -> None:
    """Run jobs until this process is ended."""
    machine = Machine()
    folder = program.parent / "jobs"
    folder.mkdir(parents=True, exist_ok=True)
    # Two runners on one machine would have one lease. No job can lock what it can't open.
    lock = os.open(folder / "lock", os.O_CREAT | os.O_WRONLY, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # libtpu and JAX take a host's number from there, too (JAX: _src/clusters/cloud_tpu_cluster.py).
    number = int(machine.optional(Metadata.WORKER_NUMBER) or 0) if is_here else 0
    runner = (
        _host(machine, folder, program, number)
        if number
        else _runner(machine, folder, program, is_here=is_here)
    )
    said = ""
    say("waiting for jobs")
    while True:
        try:
            runner.step()
            said, pause = "", _STEP_SECONDS
        except OSError as error:
            if said != str(error):
                said = str(error)
                say(f"trying again: {said}")
            pause = _RETRY_SECONDS * random.uniform(0.5, 1.0)
        time.sleep(pause)


def _host(machine: Machine, folder: Path, program: Path, number: int) -> Host:
    """Return what runs jobs on another host of a slice than worker 0."""
    place, tpu = machine.place(), machine.attribute(Metadata.TPU_NAME)
    tpus = Tpus(place, tpu, machine.client.call, lambda: None, is_here=True)
    world = HostWorld(os.environ, lambda one: one.start(program), time.sleep, time.time, say)
    store = Bucket(place.bucket, machine.client.send)
    return Host(store, tpu, number, tpus.ready, folder, world)


def _runner(machine: Machine, folder: Path, program: Path, *, is_here: bool) -> Runner:
    place = machine.place()
    me = Holder(machine.entry("id"), machine.entry("name"))
    tpu = machine.attribute(Metadata.TPU_NAME)
    store = Bucket(place.bucket, machine.client.send)

    def want() -> None:
        store.write(paths.WANTED, dump({"at": time.time()}))

    tpus = Tpus(place, tpu, machine.client.call, want, is_here=is_here)
    tell = partial(Events(machine.optional, machine.client.call, say).report, "job")
    world = World(now, time.time, say, lambda one: one.start(program), tell)
    return Runner(store, me, tpu, tpus, folder, world)
