"""What the training loses to a checkpoint that is written behind it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.result import Result
from bench.sandbox import session
from bench.trainer.mnist import run_program, write_mnist
from tpustack.local import LocalCloudCommand

_BUCKET = "bench-checkpoints"
# Cloud Storage answers after "typically tens of milliseconds":
# https://cloud.google.com/storage/docs/storage-classes
_SECONDS_PER_CALL = 0.03
# Loops, steps of each, rounds: a turn is longer than a checkpoint takes to be written.
_TO_BUCKET, _TO_DISK = ("4", "50", "11"), ("1", "20", "41")
# Steps on one core: like those of a TPU, they leave the host to the writer.
_ONE_CORE = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def measure() -> list[Result]:
    """The MNIST CNN with Adam's moments, to a bucket and to a local disk.

    The row with the goal is the one to the bucket: there a TPU's checkpoints always go. What is
    synchronous is TensorFlow's own tf.train.CheckpointManager to the same place. A TPU's steps
    leave the host's processor alone; here one core stands in for it, and the other has the writing
    thread and the local cloud. The last rows have the steps on all cores instead, where all of a
    checkpoint's work is taken from them, and so is the local cloud's.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write_mnist(folder)
        disk = _run(data, str(folder / "results"), _TO_DISK, _ONE_CORE)
        with LocalCloudCommand(folder / "cloud").running() as cloud:
            url, environment = _make_bucket(cloud), cloud.environment()
            bucket = _run(data, f"{url}/one", _TO_BUCKET, environment | _ONE_CORE)
            contended = _run(data, f"{url}/all", _TO_BUCKET, environment)
    return [
        *_results("bucket", bucket, goal=0.05),
        *_results("disk", disk),
        *_results("bucket, steps on all cores", contended),
    ]


def _make_bucket(cloud: LocalCloudCommand) -> str:
    """The URL of a bucket whose calls take their time from now on."""
    session(cloud).post(
        "https://storage.googleapis.com/storage/v1/b",
        params={"project": cloud.status()["project"]},
        json={"name": _BUCKET, "location": "US-CENTRAL1"},
        timeout=30,
    ).raise_for_status()
    cloud.run("faults", "add", "storage.*", "--status", "0", "--delay", str(_SECONDS_PER_CALL))
    return f"gs://{_BUCKET}"


def _run(
    data: Path, target: str, size: tuple[str, ...], environment: Mapping[str, str]
) -> dict[str, float]:
    arguments = (str(data), target, *size)
    said = run_program("bench.trainer.checkpoint", *arguments, environment=environment)
    figures: dict[str, float] = json.loads(said.splitlines()[-1])
    return figures


def _results(where: str, figures: dict[str, float], goal: float | None = None) -> list[Result]:
    lost = f"checkpoint to a {where}: time lost"
    ratio = max(0.0, figures["asynchronous"]) / figures["synchronous"]
    return [
        Result(f"{lost}, asynchronous against synchronous", ratio, "ratio", goal),
        Result(f"{lost}, asynchronous", figures["asynchronous"] * 1000, "ms"),
        Result(f"{lost}, the same waited for", figures["waited_for"] * 1000, "ms"),
        Result(f"{lost}, synchronous", figures["synchronous"] * 1000, "ms"),
    ]
