"""The examples of examples/README.md run, each with the libraries of its own lock: on this CPU.

`make frameworks` runs them. The environments are kept in the user's cache folder, by lock.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tpu_agent.jobs.environment import Tpu, variables
from tpu_agent.jobs.queue import Spec
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand
from tpustack.project import cache_folder

from .conftest import output as run
from .installed import UV

pytestmark = pytest.mark.frameworks
EXAMPLES = Path(__file__).parents[2] / "examples"
BESIDE = Tpu("t", "us-central1-b", "p", ("10.0.0.2",), "2026-01-01T00:00:00Z")
LEAST = 0.85


def python(example: str) -> Path:
    """The interpreter that has what an example's lock names."""
    lock = EXAMPLES / example / "requirements.txt"
    digest = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    folder = cache_folder() / "frameworks" / digest[:16]
    found = folder / "bin" / "python"
    if not (folder / "whole").exists():
        run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, folder])
        install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", found]
        run([*install, "--require-hashes", "--requirement", lock])
        (folder / "whole").touch()
    return found


def told(framework: str, tmp_path: Path, **more: str) -> dict[str, str]:
    """What a job on the VM has in its environment; no files next to the example's."""
    given = variables("one", 1, "b", Spec("true", framework=framework, env=more), BESIDE)
    return {**os.environ, **given, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}


def accuracy(said: str) -> float:
    return float(re.findall(r"^accuracy: ([\d.]+)$", said, re.M)[-1])


@pytest.mark.parametrize("example", ["pytorch", "lightning", "accelerate", "fastai"])
def test_an_example_of_pytorch_learns_on_the_device_that_it_was_given(
    example: str, tmp_path: Path
) -> None:
    said = run([python(example), EXAMPLES / example / "main.py"], told("pytorch", tmp_path))
    assert re.search(r"^devices: 1 x (CPU|cpu)$", said, re.M), said
    assert accuracy(said) > LEAST


@pytest.mark.parametrize("example", ["jax", "keras"])
def test_an_example_of_jax_divides_its_batch_among_eight_devices(
    example: str, tmp_path: Path
) -> None:
    eight = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    said = run([python(example), EXAMPLES / example / "main.py"], told("jax", tmp_path, **eight))
    assert "devices: 8 x cpu\n" in said
    assert accuracy(said) > LEAST


def test_two_hosts_train_together_by_jax_own_means(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # As Open MPI tells its processes of each other; a TPU's metadata does on Google.
    both = {
        "JAX_COORDINATOR_ADDRESS": address,
        "OMPI_MCA_orte_hnp_uri": f"1.0;tcp://{address}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    }
    command: list[str | Path] = [python("jax"), EXAMPLES / "jax" / "main.py", "--hosts"]
    hosts = [
        subprocess.Popen(
            command,
            env=told("jax", tmp_path, **both, OMPI_COMM_WORLD_RANK=str(rank)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [host.communicate(timeout=PATIENCE)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    for rank, words in enumerate(said):
        assert f"devices: 2 x cpu\nprocess: {rank + 1} of 2\n" in words
    assert accuracy(said[0]) == accuracy(said[1]) > LEAST


def test_a_job_gets_what_its_lock_names_by_hash_in_an_environment_of_its_own(
    deploy: Callable[..., Stack], cloud: LocalCloudCommand
) -> None:
    engine = deploy(jobs={"enabled": True})
    engine.up(lambda _line: None)
    bucket = engine.outputs()["bucket_url"]

    def job(*words: str | Path) -> str:
        command = [sys.executable, "-m", "tpustack", "job", *words, "--bucket", bucket]
        return run(command, {**os.environ, **cloud.environment()})

    frameworks = {"jax": "jax", "keras": "jax", "pytorch": "pytorch", "fastai": "pytorch"}
    for example, framework in frameworks.items():
        folder = EXAMPLES / example
        files = ("--dir", folder, "--requirements", folder / "requirements.txt")
        line = ("--command", "python main.py", *files, "--framework", framework)
        job("submit", *line, "--name", example)
        # This environment has neither JAX nor PyTorch.
        log = job("logs", example, "--follow")
        assert re.search(r"^devices: 1 x (CPU|cpu)$", log, re.M), log
        assert accuracy(log) > LEAST
