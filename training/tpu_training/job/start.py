"""Start a job: find its workers, then load TensorFlow and run."""

import importlib.util
import os

from tpu_training.cluster.endpoint.lookup import choose_local, resolve
from tpu_training.cluster.endpoint.target import Addresses, LocalTpu, NoTpu, find_target
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.cluster.machine import find_machine
from tpu_training.errors.catalog import NO_TENSORFLOW
from tpu_training.job.hang_timer import HangTimer
from tpu_training.job.job import Job
from tpu_training.loop.shutdown import ShutdownRequest


def run_job(job: Job, shutdown: ShutdownRequest, hang_timer: HangTimer) -> str:
    """Run `job` and return a summary line. Raises TrainingError or TensorFlow's errors."""
    workers, wait = find_workers(job)
    from tpu_training.job.run import run_on

    return run_on(workers, job, wait, shutdown, hang_timer)


def find_workers(job: Job) -> tuple[Addresses | LocalTpu | NoTpu, Wait]:
    """Return the workers of `job` and how long to wait for them; wait for a TPU to be READY.

    Reports a missing TensorFlow, a wrong name or a missing role before TensorFlow takes seconds to
    load and before any waiting.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(NO_TENSORFLOW, name="tensorflow")
    params = job.params
    wait = Wait(params.connect_tries, params.connect_interval)
    target = find_target(job.tpu, job.tpu_project, job.tpu_zone, os.environ)
    split_cpu = params.local_devices > 0
    workers = choose_local(resolve(target, wait), find_machine(), split_cpu)
    if isinstance(workers, Addresses):
        # The TPU belongs to another machine: TensorFlow must not look for one here.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
    return workers, wait
