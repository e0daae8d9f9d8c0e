"""Start a job: find its workers, then load TensorFlow and run."""

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable

from tpu_training.cluster import cloud_tpu, endpoint, machine
from tpu_training.compile.programs import import_tensorflow
from tpu_training.data.buckets import set_up_buckets
from tpu_training.data.manifest import is_function
from tpu_training.errors import InputError
from tpu_training.errors.catalog import NO_TENSORFLOW
from tpu_training.goodput.ledger import Beginning
from tpu_training.job.job import Job, Result, check_local_files
from tpu_training.job.supervision import HangTimer
from tpu_training.loop.callbacks import ShutdownRequest

logger = logging.getLogger(__name__)


def run_job(
    job: Job,
    shutdown: ShutdownRequest,
    hang_timer: HangTimer,
    begun: float,
    *,
    own_process: bool = False,
) -> Result:
    """Run `job`, of a program that started at `begun`, a time of time.monotonic().

    Raises TrainingError or TensorFlow's errors.

    Args:
        own_process: Whether nothing else uses TensorFlow here. A job without code of the user's
            then imports it in half the time; see `import_tensorflow`.
    """
    lean = own_process and not (is_function(job.data) or job.params.callback)
    # With a model file of one's own TensorFlow was loaded before.
    beginning = Beginning(begun)

    def load() -> None:
        if "tensorflow" not in sys.modules:
            logger.info("loading TensorFlow, which takes some seconds")
        with beginning.measure("load"):
            if lean:
                import_tensorflow()
            importlib.import_module("tpu_training.job.run")

    with beginning.measure("wait"):
        workers, wait = find_workers(job, load)
    load()
    from tpu_training.job.run import run_on

    return run_on(workers, job, wait, shutdown, hang_timer, beginning)


def find_workers(
    job: Job, waiting: Callable[[], None] = lambda: None
) -> tuple[endpoint.Workers, endpoint.Wait]:
    """Return the workers of `job` and how long to wait for them; wait for a TPU to be READY.

    Reports a missing TensorFlow, wrong names, data, directories and a missing role before
    TensorFlow takes seconds to load and before any waiting. Calls `waiting` whenever it has to
    wait.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(NO_TENSORFLOW, name="tensorflow")
    params = job.params
    wait = endpoint.Wait(params.connect_tries, params.connect_interval)
    target = endpoint.find_target(job.tpu, job.tpu_project, job.tpu_zone, os.environ)
    check_local_files(job)
    split_cpu = params.local_devices > 0
    workers = cloud_tpu.choose_local(
        cloud_tpu.resolve(target, wait, waiting), machine.find_machine(), split_cpu
    )
    if isinstance(workers, endpoint.LocalTpu):
        machine.check_library(os.environ)
    return workers, wait


def prepare_tensorflow(tpu: str | None, trains: bool) -> None:
    """Set what TensorFlow reads while it is imported, which the import of an own model may be.

    Args:
        tpu: What --tpu says, if anything.
        trains: Whether the command trains; others leave a TPU to those that do.
    """
    set_up_buckets(os.environ)
    try:
        target = endpoint.find_target(tpu, None, None, os.environ) if trains else endpoint.NoTpu()
    except InputError:
        # It is reported with all other problems of the command line.
        return
    if isinstance(target, endpoint.Addresses | endpoint.NamedTpu):
        machine.leave_tpu_alone(os.environ)
        return
    found = machine.find_machine()
    if found.tpu_chips and (found.slice or not trains):
        machine.leave_tpu_alone(os.environ)
    elif isinstance(target, endpoint.LocalTpu) or found.has_usable_tpu:
        machine.use_tpu_here(os.environ, machine.installed_library())
