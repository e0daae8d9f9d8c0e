"""Convert a job's Parquet files, WebDataset shards or TensorFlow data set before its first step.

Their readers run in Python, which a TPU's hosts don't, and have no exact place to go on from. So
the job writes them once as files that it reads as any other data set's.
"""

import dataclasses
import hashlib
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from tpu_training.data.convert.tables import find_splits, holds
from tpu_training.data.manifest import FILE_NAME
from tpu_training.errors import InputError
from tpu_training.job.job import Job

_BY_NAME = "tfds:"
_SUFFIXES = (".parquet", ".tar")
_FAILED = "data convert failed: "

logger = logging.getLogger(__name__)


def with_converted_data(job: Job) -> Job:
    """Return `job` with the data set below its model directory that --data was converted to.

    Returns it as it is if --data needs no conversion.

    Raises:
        InputError: The conversion failed.
    """
    if job.data.startswith(_BY_NAME):
        key = job.data
    else:
        found = _files(job.data)
        if not found:
            return job
        key = repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in found])
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    directory = f"{job.model_dir.rstrip('/')}/data-{digest}"
    write = _write_to_bucket if "://" in directory else _write
    write(job.data, directory)
    return dataclasses.replace(job, data=directory)


def _files(data: str) -> list[Path]:
    """Return the shards that `data` names, a file or a folder."""
    path = Path(data)
    if "://" in data or (path / FILE_NAME).is_file():
        return []
    if path.suffix in _SUFFIXES and not path.exists():
        raise InputError(f"--data={data}: there is no such file or directory")
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
    if files.size(f"{directory}/{FILE_NAME}") is not None:
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "data")
        _convert(data, str(made), directory)
        # The manifest last: what has one is whole.
        for path in sorted(made.iterdir(), key=lambda path: path.name == FILE_NAME):
            files.write_bytes(f"{directory}/{path.name}", path.read_bytes())


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
            "`tpu-training data convert`, and give the training its --output"
        )
