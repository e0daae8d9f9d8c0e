"""One job from its arguments to `metrics.json`: the modes train, evaluate, train-and-evaluate."""

import os
from dataclasses import dataclass

from tpu_training.endpoint.environment import Addresses, LocalTpu, NoTpu, find_target
from tpu_training.endpoint.lookup import choose_local, resolve
from tpu_training.endpoint.machine import find_machine
from tpu_training.endpoint.wait import Wait
from tpu_training.model_registry import ModelDefinition
from tpu_training.params import Params
from tpu_training.shutdown import ShutdownRequest
from tpu_training.watchdog import Watchdog


@dataclass(frozen=True)
class Job:
    """What to run, on what, from where to where."""

    mode: str
    tpu: str | None
    tpu_project: str | None
    tpu_zone: str | None
    data: str
    model_dir: str
    model: ModelDefinition
    params: Params

    @property
    def trains(self) -> bool:
        """Whether the mode has a training part."""
        return self.mode in ("train", "train-and-evaluate")

    @property
    def evaluates(self) -> bool:
        """Whether the mode has an evaluation part."""
        return self.mode in ("evaluate", "train-and-evaluate")


def run_job(job: Job, shutdown: ShutdownRequest, watchdog: Watchdog) -> str:
    """Run `job` and return a line that sums it up. Raises TrainingError or TensorFlow's errors."""
    workers, wait = find_workers(job)
    from tpu_training.run import run_on

    return run_on(workers, job, wait, shutdown, watchdog)


def find_workers(job: Job) -> tuple[Addresses | LocalTpu | NoTpu, Wait]:
    """Return what `job` runs on, and how long to wait for it; waits for a TPU to be READY.

    A wrong name or a missing role is said here, before TensorFlow takes its seconds to load.
    """
    params = job.params
    wait = Wait(params.connect_tries, params.connect_interval)
    target = find_target(job.tpu, job.tpu_project, job.tpu_zone, os.environ)
    split_cpu = params.local_devices > 0
    workers = choose_local(resolve(target, wait), find_machine(), split_cpu)
    if isinstance(workers, Addresses):
        # The TPU is another machine's: TensorFlow must not look for one here.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
    return workers, wait
