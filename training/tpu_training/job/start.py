"""Start a job: find its workers, then load TensorFlow and run."""

import dataclasses
import hashlib
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from tpu_core.ledger import Beginning
from tpu_training.cluster import endpoint, google, hosts, machine
from tpu_training.compile.programs import import_tensorflow
from tpu_training.data.manifest import BY_NAME, FILE_NAME
from tpu_training.errors import NO_TENSORFLOW, InputError
from tpu_training.job.job import (
    Job,
    Result,
    check_local_files,
    directory_problems,
    missing_data,
)
from tpu_training.job.supervision import HangTimer
from tpu_training.loop.callbacks import ShutdownRequest
from tpu_training.models.params import JAX

_SUFFIXES = (".parquet", ".tar")
_FAILED = "data convert failed: "
# How TensorFlow uses a bucket. By default it doubles its pause between tries of a call from one
# second to half a minute: a few errors in a row hold a checkpoint up for minutes. Here it is 8 s at
# most, and more than two minutes in all. With libtpu it keeps blocks of 512 MiB, up to 160 GiB, in
# the host's memory (TensorFlow 2.19.1, xla/tsl/platform/cloud/gcs_file_system.h, read 2026-11-24).
# A file of a dataset is read once, so nothing is kept here, and one request reads it.
# agent/tpu_agent/startup/tpu_vm.sh sets the same for the worker that it starts.
BUCKET_SETTINGS = {
    "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "250000",
    "GCS_RETRY_CONFIG_MAX_DELAY_TIME_US": "8000000",
    "GCS_RETRY_CONFIG_MAX_RETRIES": "20",
    "GCS_READ_CACHE_BLOCK_SIZE_MB": "32",
    "GCS_READ_CACHE_MAX_SIZE_MB": "0",
}

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
    lean = own_process and not (job.is_live or job.params.callback)
    if job.params.backend == JAX and (place := hosts.find_place()):
        _refuse_one_host_data(job, place)
    job = with_converted_data(job)
    # With a model file of one's own TensorFlow was loaded before.
    beginning = Beginning(begun)

    def load() -> None:
        if "tensorflow" not in sys.modules:
            logger.info("loading TensorFlow, which takes a few seconds")
        with beginning.measure("load"):
            if lean:
                import_tensorflow()
            importlib.import_module("tpu_training.job.run")

    with beginning.measure("wait"):
        workers, wait = find_workers(job, load)
    load()
    from tpu_training.job.run import run_on

    return run_on(workers, job, wait, shutdown, hang_timer, beginning)


def _refuse_one_host_data(job: Job, place: hosts.Place) -> None:
    """Raise InputError for data that one host writes to files, of which the others know nothing."""
    # It takes numpy, which a check of arguments does without.
    from tpu_training.data.conversion import are_written

    if job.given is None and (job.data.startswith(BY_NAME) or _files(job.data)):
        what, cure = f"--data={job.data}", "write it once with `tpu-training data convert`"
    elif job.given is not None and are_written(job.given):
        what, cure = "data: an array", "write it once with tpu_training.write_data"
    else:
        return
    raise InputError(
        f"{what}: is written to the model directory first, and this is {place}, which all would "
        f"do; {cure} into a bucket, and pass its gs:// URL"
    )


def place_problems(data: str | None, model_dir: str) -> Iterator[str]:
    """Yield what is wrong with the places of a job whose other arguments make none."""
    yield from directory_problems(model_dir)
    try:
        if data is not None and not (data.startswith(BY_NAME) or _files(data)):
            yield from missing_data(data)
    except InputError as error:
        yield str(error)


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
    if params.backend == JAX:
        if isinstance(target, endpoint.Addresses | endpoint.NamedTpu):
            raise InputError(
                f"--backend=jax runs on this machine's TPU, but {target.source} names another; "
                f"start the training there (training.runOn: tpu), or omit {target.source}"
            )
        return endpoint.NoTpu(), wait
    return choose_workers(target, wait, params.local_devices > 0, waiting), wait


def choose_workers(
    target: endpoint.Target,
    wait: endpoint.Wait,
    split_cpu: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> endpoint.Workers:
    """Return the workers of `target`: those of a name that is looked up, or this machine's."""
    workers = machine.choose_local(
        google.resolve(target, wait, waiting), machine.find_machine(), split_cpu
    )
    if isinstance(workers, endpoint.LocalTpu):
        machine.check_library(os.environ)
    return workers


def set_up_buckets(environ: MutableMapping[str, str]) -> None:
    """Set what the user has not; TensorFlow reads it once, when it is loaded."""
    for name, value in BUCKET_SETTINGS.items():
        environ.setdefault(name, value)


def prepare_tensorflow(tpu: str | None, trains: bool, backend: object = None) -> None:
    """Set what TensorFlow reads while it is imported, which the import of an own model may be.

    Args:
        tpu: What --tpu says, if anything.
        trains: Whether the command trains; others leave a TPU to those that do.
        backend: The value of --backend, if any: JAX's TPU is none of TensorFlow's.
    """
    set_up_buckets(os.environ)
    trains = trains and backend != JAX
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


def with_converted_data(job: Job) -> Job:
    """Return `job` with the dataset below its model directory that --data was converted to.

    Parquet files, WebDataset shards and TensorFlow datasets are read in Python, which a TPU's
    hosts don't run, and have no exact place from which to continue. So a job writes them once as
    files like any other dataset's. Returns the job as it is if --data needs no conversion.

    Raises:
        InputError: The conversion failed.
    """
    if job.given is not None:
        return job
    if job.data.startswith(BY_NAME):
        key = job.data
    else:
        found = _files(job.data)
        if not found:
            return job
        key = repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    directory = f"{job.model_dir.rstrip('/')}/data-{digest}"
    write = _write_to_bucket if google.is_bucket(directory) else _write
    write(job.data, directory)
    return dataclasses.replace(job, data=directory)


def _files(data: str) -> list[Path]:
    """Return the shards that `data` names, a file or a folder."""
    path = Path(data)
    if google.is_bucket(data) or (path / FILE_NAME).is_file():
        return []
    if path.suffix in _SUFFIXES and not path.exists():
        raise InputError(f"--data={data}: there is no such file or directory")
    # It takes numpy, which a check of arguments does without.
    from tpu_training.data.tables import find_splits, holds

    found = next((suffix for suffix in _SUFFIXES if holds(path, suffix)), "")
    splits = find_splits(path, found) if found else {}
    return [file for files in splits.values() for file in files]


def _write(data: str, directory: str) -> None:
    final = Path(directory)
    if (final / FILE_NAME).is_file():
        return
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".data-", dir=final.parent) as folder:
            made = Path(folder, "data")
            _convert(data, str(made), directory)
            made.rename(final)
    except OSError as error:
        raise InputError(f"--model-dir={final.parent}: can't be written ({error})") from error


def _write_to_bucket(data: str, directory: str) -> None:
    # It loads TensorFlow, which a local directory does without.
    from tpu_training.data import files

    files.check_bucket(directory, "--model-dir")
    if files.size(f"{directory}/{FILE_NAME}") is None:
        _convert(data, directory, directory)


def _convert(data: str, output: str, directory: str) -> None:
    """Run `data convert` in a process of its own: TensorFlow would take the devices here."""
    logger.info("data: converting %s once, to %s", data, directory)
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    done = subprocess.run(
        [*command, f"--source={data}", f"--output={output}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        reason = last.removeprefix(_FAILED).replace("--source=", "--data=")
        raise InputError(
            f"--data={data}: can't be converted: {reason}; or convert it with other options of "
            "`tpu-training data convert`, and pass its --output to the training"
        )
