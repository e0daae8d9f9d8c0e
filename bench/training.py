"""The trainer: through an endpoint, its start, checkpoints, Keras, loops, saves, learning rates."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import Result, compare, in_turn, run_program, wait_for, write_mnist
from localcloud.machines import tpu_worker
from tests.sandbox import running, session
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.project import root

# --- Steps a second through the TPU's gRPC endpoint against the same replicas in this process.
#
# And the host's work between two loops, in which the cores of a TPU would do nothing.

_PAIRS, _REPLICAS = 3, 8
# The worker's own settings, for the process without it.
_THREADS = {"TF_NUM_INTEROP_THREADS": str(_REPLICAS), "TF_NUM_INTRAOP_THREADS": "1"}


def measure_endpoint() -> list[Result]:
    """One epoch of MNIST each, in turn; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as folder, _worker(Path(folder)) as endpoint:
        data, between = write_mnist(Path(folder)), list[float]()
        remote, local = [f"--tpu={endpoint}"], [f"--local_devices={_REPLICAS}"]
        steps = in_turn(lambda: _train(data, remote, between), lambda: _train(data, local), _PAIRS)
    against = "endpoint: steps/s against in process"
    return [
        Result(against, steps.ratio, "ratio", goal=0.97, better="higher"),
        Result("endpoint: between two loops", 1000 * statistics.median(between), "ms", goal=2.0),
    ]


@contextmanager
def _worker(folder: Path) -> Iterator[str]:
    """The local cloud's TPU runtime, as a process of its own."""
    ready = folder / "ready"
    command = [sys.executable, tpu_worker.__file__, f"--devices={_REPLICAS}", f"--ready={ready}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            wait_for(ready.exists, "the TPU's worker process")
            yield f"grpc://127.0.0.1:{ready.read_text(encoding='ascii')}"
        finally:
            worker.kill()


def _train(data: Path, where: list[str], between: list[float] | None = None) -> float:
    """Return the steps a second; add the seconds between each two loops to `between`."""
    with tempfile.TemporaryDirectory() as results:
        target = ["--data", str(data), "--model-dir", results]
        arguments = ["train-and-evaluate", *target, *where, "--epochs=1"]
        run_program("tpu_training", *arguments, environment=_THREADS)
        metrics = json.loads((Path(results) / "metrics.json").read_text(encoding="utf-8"))
        report = json.loads((Path(results) / "report.json").read_text(encoding="utf-8"))
    if between is not None:
        # The report has the seconds for each of a loop's steps, by the loop's end.
        idle = report["series"]["seconds_per_step/idle"]
        points = sorted((int(step), seconds) for step, seconds in idle.items())
        pairs = itertools.pairwise(points)
        between += [(step - before) * seconds for (before, _), (step, seconds) in pairs]
    if metrics["replicas"] != _REPLICAS:
        raise TpustackError(f"{metrics['replicas']} replicas instead of {_REPLICAS}")
    return float(metrics["steps_per_second"])


# --- From the command to the end of the first step, against the smallest TensorFlow script.

_STARTS = 5


def measure_startup() -> list[Result]:
    """Both in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        _ours(data), _smallest()
        took = in_turn(lambda: _ours(data), _smallest, _STARTS)
    against = "start: to the first step against the smallest script"
    return [Result(against, took.ratio, "ratio", goal=1.3)]


def _ours(data: Path, *more: str, cache: str = "") -> float:
    with tempfile.TemporaryDirectory() as results:
        arguments = ["train", f"--data={data}", f"--model-dir={results}", "--steps_per_loop=1"]
        return _seconds_until("progress step=1/", "tpu_training", *arguments, *more, cache=cache)


def _smallest() -> float:
    return _seconds_until("first step:", "tests.smallest")


def _seconds_until(line: str, module: str, *arguments: str, cache: str = "") -> float:
    command = [sys.executable, "-m", module, *arguments]
    own = {**os.environ, "XDG_CACHE_HOME": cache} if cache else None
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=root(), env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        try:
            if any(said.startswith(line) for said in process.stdout):
                return time.perf_counter() - begun
        finally:
            process.kill()
    raise TpustackError(f"{' '.join(command)} ended before it said {line!r}")


# --- The second start of a training, which finds what JAX compiled for the first.

_COMPILED = ("--backend=jax", "--model=resnet", "--global_batch_size=8")


def measure_second_start() -> list[Result]:
    """On JAX alone: TensorFlow keeps no program of a TPU's."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        starts = [partial(_ours, data, *_COMPILED, cache=f"{folder}/{n}") for n in range(_PAIRS)]
        took = compare([(start(), start()) for start in starts])
    against = "start: to the first step, first against second, on JAX"
    return [Result(against, took.ratio, "ratio", 2.0, "higher")]


# --- What the training loses to a checkpoint that is written behind it.

_BUCKET = "bench-checkpoints"
# Cloud Storage answers after "typically tens of milliseconds":
# https://cloud.google.com/storage/docs/storage-classes
_SECONDS_PER_CALL = 0.03
# Loops, steps of each, rounds: a turn is longer than a checkpoint takes to be written.
_TURNS = ("4", "50", "11")
# Steps on one core: like those of a TPU, they leave the host to the writer.
_ONE_CORE = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def measure_checkpoint() -> list[Result]:
    """The MNIST CNN with Adam's moments, to a bucket, where a TPU's checkpoints always go.

    What is synchronous is TensorFlow's own tf.train.CheckpointManager to the same place.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, data = Path(temporary), write_mnist(Path(temporary))
        with running(LocalCloudCommand(folder / "cloud")) as cloud:
            arguments = ("checkpoint", str(data), f"{_make_bucket(cloud)}/results", *_TURNS)
            figures = _figures(*arguments, environment=cloud.environment() | _ONE_CORE)
    ratio = max(0.0, figures["asynchronous"]) / figures["synchronous"]
    lost = "checkpoint to a bucket: time lost"
    return [Result(f"{lost}, asynchronous against synchronous", ratio, "ratio", goal=0.05)]


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


def _figures(*arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """Run a program of bench/programs.py; return what it measured."""
    printed = run_program("bench.programs", *arguments, environment=environment)
    return dict(json.loads(printed.splitlines()[-1]))


# --- The trainer's loop against Keras' `fit` with the best `steps_per_execution`.

_MODELS = {"mobilenet_v2": "MobileNetV2 at 32 x 32", "transformer": "a small transformer"}


def measure_keras() -> list[Result]:
    """The trainer's own network and Keras' like it; then Keras models in both, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        results = _rates("", _figures("network", str(data)))
        for name, words in _MODELS.items():
            results += _rates(f" of {words}", _figures("model", name, f"{folder}/{name}"))
    return results


def _rates(model: str, figures: Mapping[str, float]) -> list[Result]:
    fit = f"Keras fit, {figures['steps_per_execution']} steps per execution"
    against = f"training: steps/s{model} against Keras fit"
    return [
        Result(against, figures["ratio"], "ratio", 1.0, "higher"),
        Result(f"training: steps/s{model}", figures["ours"], "1/s", better="higher"),
        Result(f"training: steps/s{model} of {fit}", figures["keras"], "1/s", better="higher"),
    ]


# --- What the host does between two loops of steps, in which the devices wait for it.


def measure_loops() -> list[Result]:
    """A job with all of its callbacks, TensorBoard and ledger; of all that its loops take."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        figures = _figures("loops", str(data), f"{folder}/results")
    return [Result("loops: host work between loops", figures["share"], "part", 0.02)]


# --- How long a save holds the steps, and what it takes of the trainer's memory.


def measure_save() -> list[Result]:
    """1.2 GB on a worker. At 4 GB/s the goal is 0.3 s."""
    with tempfile.TemporaryDirectory() as folder, _worker(Path(folder)) as endpoint:
        figures = _figures("save", endpoint, f"{folder}/results")
    return [
        Result("save: holds the steps, 1.2 GB", figures["held"], "s"),
        Result("save: holds the steps, against a copy in memory", figures["copy"], "ratio", 1.0),
        Result("save: the trainer's memory against the state", figures["memory"], "ratio", 1.2),
    ]


# --- What the learning-rate range test suggests, against a grid of trainings.


def measure_rates() -> list[Result]:
    """Try all pairs of model and data with each optimizer."""
    from bench.programs import OPTIMIZERS, PAIRS, lost_points, try_pair, write_data

    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder))
        tried = [try_pair(data, *pair) for pair in itertools.product(PAIRS, OPTIMIZERS)]
    return lost_points(tried)
