"""Start a job: find what it runs on, then load TensorFlow and run it there."""

import os

from tpu_training.cluster.endpoint.lookup import choose_local, resolve
from tpu_training.cluster.endpoint.target import Addresses, LocalTpu, NoTpu, find_target
from tpu_training.cluster.endpoint.wait import Wait
from tpu_training.cluster.machine import find_machine
from tpu_training.job.hang_timer import HangTimer
from tpu_training.job.job import Job
from tpu_training.loop.shutdown import ShutdownRequest


def run_job(job: Job, shutdown: ShutdownRequest, hang_timer: HangTimer) -> str:
    """Run `job` and return a line that sums it up. Raises TrainingError or TensorFlow's errors."""
    workers, wait = find_workers(job)
    from tpu_training.job.run import run_on

    return run_on(workers, job, wait, shutdown, hang_timer)


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
