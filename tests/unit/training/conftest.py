from __future__ import annotations

import fcntl
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from tests.patience import until
from tpu_training.compile.programs import import_tensorflow
from tpu_training.data.conversion import convert
from tpu_training.data.source import Options

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster
    from tpu_training.data.data_set import DataSet

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TPU_VARIABLES = (
    "TPU_GRPC_URL",
    "TPU_NAME",
    "TPU_CONFIG",
    "TPU_ZONE",
    "TPU_PROJECT",
    "COLAB_TPU_ADDR",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    # Set by whichever test loads TensorFlow first, as by a job that trains elsewhere.
    "TPU_LOAD_LIBRARY",
)

# No test finds what others compiled, nor fills the cache of the person who runs it. JAX reads this
# when it is imported, as it is while tests are collected.
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

# A process takes seconds to start: the tests that share it run in one process.
SHARED = ("worker_process",)

_TRAINS = re.compile(r"^pytestmark = .*training", re.M)

StartTraining = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def no_seed_of_others() -> None:
    """Draw other numbers than the last test, whose model may have set a seed for its process."""
    if tensorflow := sys.modules.get("tensorflow"):
        tensorflow.random.set_seed(None)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Load TensorFlow as the trainer does, for half the time, before a module that needs it."""
    if isinstance(collector, pytest.Module) and _TRAINS.search(collector.path.read_text("utf-8")):
        import_tensorflow()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for fixture in SHARED:
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(fixture))


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    header = bytes((0, 0, 8, array.ndim))
    header += b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist_like(directory: Path, train: int = 64, test: int = 30, size: int = 28) -> None:
    """IDX files as MNIST names them: each image is a bar whose position is its label."""
    directory.mkdir(exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = (np.arange(count) % 10).astype(np.uint8)
        images = np.zeros((count, size, size), np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 3] = 255
        write_idx(directory / f"{prefix}-images-idx3-ubyte", images)
        write_idx(directory / f"{prefix}-labels-idx1-ubyte", labels)


@pytest.fixture(autouse=True)
def _no_tpu_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in TPU_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(autouse=True)
def _devices_first(request: pytest.FixtureRequest) -> None:
    """TensorFlow splits the CPU only before its first operation, which may be any test's."""
    if "tensorflow" in sys.modules:
        request.getfixturevalue("cluster")


@pytest.fixture(scope="session")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 640 training and 1,003 test images, a number that no batch size divides."""
    folder = tmp_path_factory.mktemp("bars")
    write_mnist_like(folder / "idx", train=640, test=1003)
    convert(str(folder / "idx"), str(folder / "data"), Options(name="bars"))
    return folder / "data"


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """103 images in five files; the first pixel of each is its number, the label its last digit."""
    from tpu_training.data.data_set import open_data

    folder = tmp_path_factory.mktemp("numbered")
    images = np.zeros((103, 2, 2), np.uint8)
    images[:, 0, 0] = np.arange(103)
    labels = (np.arange(103) % 10).astype(np.uint8)
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpu_training.data.conversion._count_shards", lambda *_: 5)
        convert(str(folder), str(folder / "data"))
    return open_data(str(folder / "data"))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Eight replicas in this process."""
    from tpu_training.cluster.cluster import connect
    from tpu_training.cluster.endpoint import NoTpu, Wait

    return connect(NoTpu(), Wait(), local_devices=8)


@pytest.fixture(scope="session")
def one_device(cluster: Cluster) -> Cluster:
    """One replica in this process, which is traced in an eighth of the time."""
    from tpu_training.serving.model import this_machine

    return this_machine()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Returns the folder that a function fills: by the first of the processes that run tests."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

    def get(name: str, fill: Callable[[Path], object]) -> Path:
        folder = root / f"shared-{name}"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "whole").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                (folder / "whole").touch()
        return folder

    return get


@pytest.fixture(autouse=True)
def no_hang_timer_stays() -> Iterator[None]:
    """End the timer of a command that failed: half an hour later it would end other tests."""
    yield
    for thread in threading.enumerate():
        if thread.name == "hang-timer":
            getattr(thread, "_target").__self__.uninstall()  # noqa: B009


@pytest.fixture(scope="session")
def run_here(one_device: Cluster) -> Callable[..., None]:
    """Runs a command in this process; a job on one replica, without the hang timer."""
    from tpu_training.__main__ import parse
    from tpu_training.cluster.endpoint import NoTpu, Wait
    from tpu_training.job.job import Job
    from tpu_training.job.run import run_on
    from tpu_training.job.supervision import HangTimer
    from tpu_training.loop.callbacks import ShutdownRequest

    def run(*arguments: object) -> None:
        command = parse([str(argument) for argument in arguments])
        if not isinstance(command, Job):
            assert command() == 0
            return
        with pytest.MonkeyPatch.context() as patch:
            connect = functools.cache(lambda *_: one_device)
            patch.setattr("tpu_training.job.run.connect", connect)
            run_on(NoTpu(), command, Wait(), ShutdownRequest(), HangTimer())

    return run


@pytest.fixture(scope="session")
def digits(made_once: Callable[..., Path]) -> Path:
    """scikit-learn's digits: 1,437 training and 360 test images of 28 x 28 bytes."""
    return made_once("digits", lambda folder: convert("digits", str(folder)))


@pytest.fixture(scope="session")
def digits_model(
    digits: Path, run_here: Callable[..., None], made_once: Callable[..., Path]
) -> Path:
    """The model directory of a training on the digits that was carried to its end."""
    sizes = ("--global_batch_size=64", "--evaluation_batch_size=64", "--steps_per_loop=20")

    def train(folder: Path) -> None:
        where = (f"--data={digits}", f"--model-dir={folder}")
        run_here("train-and-evaluate", *where, *sizes, "--epochs=6")

    return made_once("digits-model", train)


@pytest.fixture(scope="session")
def reviews(run_page: Callable[[Path, Path], None], made_once: Callable[..., Path]) -> Path:
    """A folder in which the recipe of the small encoder was followed: reviews/ and results/."""
    pytest.importorskip("datasets", reason="an optional library")
    page = ROOT / "training" / "recipes" / "bert-reviews.md"
    return made_once("reviews", lambda folder: run_page(page, folder))


@pytest.fixture(scope="session")
def run_page(run_here: Callable[..., None]) -> Callable[[Path, Path], None]:
    """Runs a page's Python, then its commands, as a reader in a folder would."""

    def run(page: Path, folder: Path) -> None:
        text = page.read_text(encoding="utf-8")
        for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
        (folder / "training").symlink_to(ROOT / "training")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for line in re.findall(r"^    tpu-training (.*)$", text.replace("\\\n", ""), re.M):
                run_here(*shlex.split(line))

    return run


@pytest.fixture
def quick_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let XLA compile for a CPU in a third of the time; a process reads it once."""
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    monkeypatch.setenv("XLA_FLAGS", flags)


@pytest.fixture(scope="module")
def worker(worker_process: tuple[str, int]) -> str:
    """The address of a gRPC worker with several devices."""
    return worker_process[0]


@pytest.fixture(scope="module")
def worker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The address of a gRPC worker with several devices, and the number of its process."""
    port_file = tmp_path_factory.mktemp("worker") / "port"
    with subprocess.Popen(
        [sys.executable, str(HERE / "grpc_worker.py"), str(port_file)]
    ) as process:
        try:
            until(lambda: port_file.exists() or process.poll() is not None, "the worker starts")
            assert process.poll() is None, "the worker died"
            yield f"127.0.0.1:{port_file.read_text()}", process.pid
        finally:
            process.kill()


@pytest.fixture
def start_training(tmp_path: Path) -> Iterator[StartTraining]:
    """Starts `tpu-training` in tmp_path; kills what is left at the end."""
    processes = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tpu_training", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def write_mnist() -> Callable[..., None]:
    """Writes IDX files like MNIST's; see write_mnist_like."""
    return write_mnist_like


@pytest.fixture(scope="session")
def tpu(cluster: Cluster) -> Cluster:
    """A TPU of eight cores that can be traced for, not run; see fake_tpu.py."""
    from tests.unit.training.fake_tpu import fake_tpu

    return fake_tpu()
