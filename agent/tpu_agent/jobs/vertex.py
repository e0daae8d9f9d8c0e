"""Runs one job in a container of Vertex AI, which has a TPU of its own for it.

Vertex AI makes one container and, if its machine goes, another one, so that there is no lease:
each attempt is written into the job's record, on the condition that it has not changed. Each host
of a slice has a container; the record is worker 0's, and the others follow it (hosts.Follower).
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tpu_agent.jobs import environment as variables
from tpu_agent.jobs.environment import Tpu
from tpu_agent.jobs.hosts import Follower, World
from tpu_agent.jobs.queue import FAILED, QUEUED, RUNNING, Job, Outcome, Queue
from tpu_agent.jobs.runner import Current
from tpu_core.bucket import Bucket
from tpu_core.contract import Environment
from tpu_core.google import GoogleError

WORKER = "TPU_WORKER_ID"
"""The variable with the number of a host within its slice."""
PLACE = "vertex"
"""What stands for a TPU's name in an attempt that ran on Vertex AI."""
_LOOK = 2.0
_STEP = 0.1
_GONE = Outcome("preempted", None, "Vertex AI replaced its machine")
_TAKEN = "Vertex AI stopped the container"
_NO_NUMBER = f"Vertex AI set no number for this host of the slice ({WORKER})"


class Managed:
    """Runs a job, try by try, until it is over."""

    def __init__(self, store: Bucket, folder: Path, world: World) -> None:
        self._store, self._folder, self._world = store, folder, world
        self._queue = Queue(store, world.say)
        self._taken = False
        # Of this container, in its tries: Vertex AI's ID is that of its predecessors, too.
        self._me = f"{world.environment.get('CLOUD_ML_JOB_ID', '')}-{uuid.uuid4().hex}"

    def take_away(self) -> None:
        """Know that Vertex AI ends the container."""
        self._taken = True

    def run(self, name: str) -> int:
        """Run the job of that name; return the container's exit code."""
        self._refuse_unnumbered(name)
        self._end_earlier(name)
        while not self._taken and (job := self._queue.change(name, self._started)) is not None:
            self._run_try(job)
        ended = self._queue.read(name)
        if ended is None:
            self._world.say(f"there is no job {name} in gs://{self._store.bucket}")
            return 1
        self._world.say(f"{name} is {ended.state} {ended.reason}".rstrip())
        return ended.code if ended.code is not None else 1

    def _refuse_unnumbered(self, name: str) -> None:
        """End a job whose hosts would all take themselves for worker 0."""

        def end(job: Job) -> Job | None:
            alone = int(job.spec.vertex.get("hosts", "1")) == 1
            if alone or job.is_over or WORKER in self._world.environment:
                return None
            return job.over(FAILED, self._world.time(), _NO_NUMBER)

        self._queue.change(name, end)

    def _end_earlier(self, name: str) -> None:
        """Count what an earlier container of this job has begun."""

        def end(job: Job) -> Job | None:
            return job.after_try(_GONE, self._world.time()) if job.state == RUNNING else None

        self._queue.change(name, end)

    def _started(self, job: Job) -> Job | None:
        if job.state == RUNNING and job.tries[-1].runner == self._me:
            # The answer was lost, and the record has changed since.
            return job
        if job.state != QUEUED:
            return None
        return job.started(self._me, socket.gethostname(), PLACE, self._world.time())

    def _run_try(self, job: Job) -> None:
        current = Current(job, self._folder, self._store, self._world.time)
        current.attempt.prepare(content_of(job, self._store.bucket, self._world.environment))
        self._world.start(current.attempt)
        outcome = self._watch(current)
        current.attempt.kill()
        current.shipping.finish()
        # The next container may have counted this try as lost by then: its end must not be counted
        # twice.
        tries = len(job.tries)

        def end(now: Job) -> Job | None:
            is_same = now.state == RUNNING and len(now.tries) == tries
            return now.after_try(outcome, self._world.time()) if is_same else None

        self._queue.change(job.name, end)
        current.attempt.remove()

    def _watch(self, current: Current) -> Outcome:
        """Bring the log to the bucket until the attempt has ended; return how."""
        looked = 0.0
        while (outcome := current.attempt.outcome()) is None:
            now = time.monotonic()
            try:
                current.shipping.ship(now)
                if now >= looked + _LOOK:
                    looked = now
                    self._end_if_wanted(current)
            except GoogleError as error:
                self._world.say(f"retrying: {error}")
            self._world.sleep(_STEP)
        return outcome

    def _end_if_wanted(self, current: Current) -> None:
        if self._taken:
            current.attempt.end("preempted", _TAKEN)
            return
        job = self._queue.read(current.job.name)
        if job is None or job.stop or job.is_over:
            current.attempt.end("stopped")
        elif len(job.tries) != len(current.job.tries):
            current.attempt.end("preempted", "another container already runs the job")


def run(program: Path, bucket: str, name: str, store: Callable[[str], Bucket]) -> int:
    """Run a job in this container with the agent's program; return the exit code."""
    # The supervisor's environments are made with the image's own Python, and see its packages.
    os.environ.setdefault(Environment.PYTHON, sys.executable)
    say = partial(print, flush=True)
    world = World(os.environ, lambda one: one.start(program), time.sleep, time.time, say)
    own, folder = store(bucket), Path(tempfile.mkdtemp(prefix="tpu-stack-"))
    worker = os.environ.get(WORKER, "0")
    managed = (
        Managed(own, folder, world)
        if worker == "0"
        else Follower(own, folder, world, worker, lambda job: content_of(job, bucket, os.environ))
    )
    # The first process of a container gets no signal that it does not ask for.
    signal.signal(signal.SIGTERM, lambda *_: managed.take_away())
    return managed.run(name)


# Vertex AI sets what a slice's hosts must know of each other.
_NOT_OURS = (WORKER, "TPU_WORKER_HOSTNAMES", "TPU_GRPC_URL", "XRT_TPU_CONFIG")


def content_of(job: Job, bucket: str, environment: Mapping[str, str]) -> dict[str, object]:
    """Return what a container with these variables runs of a job's last attempt."""
    content = variables.content_of(job, bucket, tpu_of(environment))
    made = content["variables"]
    kept = {name: made[name] for name in made if name in job.spec.env or name not in _NOT_OURS}
    return {**content, "variables": kept, "sees_packages": True}


def tpu_of(environment: Mapping[str, str]) -> Tpu:
    """Return the TPU that a container has, as Vertex AI tells it by `TPU_CONFIG`.

    AI Platform's containers had to wait for the node of that name; today's are on the TPU's own
    machine, where it is there before they are.
    """
    try:
        config = dict(json.loads(environment.get("TPU_CONFIG") or "{}"))
    except ValueError:
        config = {}
    name = str(config.get("tpu_node_name") or "local")
    zone, project = str(config.get("zone", "")), str(config.get("project", ""))
    return Tpu(name, zone, project, (), "", is_here=True)
