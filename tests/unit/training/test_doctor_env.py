"""`tpu-training doctor env`: what a job would train on here, and why."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tpu_training.__main__ import main
from tpu_training.cluster.endpoint import Addresses, NamedTpu, Target, Wait
from tpu_training.cluster.machine import Machine
from tpu_training.errors import TpuStateError

TPU_VM = Machine(tpu_chips=4, tpu_generation="v4", has_libtpu=True)
LOGGER = logging.getLogger("tpu_training")
CONFIG = json.dumps({"tpu_node_name": "n", "project": "p", "zone": "z"})


@pytest.fixture(autouse=True)
def _log_of_other_tests() -> Iterator[None]:
    """The command, whose process ends with it, lets the package log errors alone."""
    level = LOGGER.level
    yield
    LOGGER.setLevel(level)


def resolve(target: Target, wait: Wait, *_: object) -> Target:
    assert wait.tries == 1
    if not isinstance(target, NamedTpu):
        return target
    if target.name == "gone":
        raise TpuStateError("the TPU gone in z is PREEMPTED: delete it")
    return Addresses(("10.0.0.2:8470",), f"{target.source}={target.name}")


@pytest.mark.parametrize(
    ("environ", "machine", "arguments", "words"),
    [
        ({}, Machine(), [], "use: this machine's CPU\nbecause: no setting names a TPU"),
        (
            {},
            TPU_VM,
            [],
            "use: this machine's TPU\nbecause: this machine has 4 TPU chips (v4) and lib",
        ),
        ({"TPU_NAME": "local"}, TPU_VM, [], "use: this machine's TPU\nbecause: TPU_NAME is local"),
        ({}, Machine(), ["--tpu=a"], "TPU at grpc://10.0.0.2:8470\nbecause: --tpu=a names it"),
        ({"TPU_CONFIG": CONFIG}, Machine(), [], "because: TPU_CONFIG=n names it"),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a.b:1,grpc://c.d:1"},
            Machine(),
            [],
            "TPU at grpc://a.b:1,grpc://c.d:1\nbecause: KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS names it",
        ),
    ],
)
def test_doctor_env_names_what_a_job_would_train_on_and_why(
    environ: dict[str, str],
    machine: Machine,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    play(monkeypatch, machine)
    assert main(["doctor", "env", *arguments]) == 0
    shown = capsys.readouterr().out
    assert words in shown
    assert f"  {'TPU_GRPC_URL':<33}not set\n" in shown
    assert all(f"  {name:<33}{value}\n" in shown for name, value in environ.items())


def play(monkeypatch: pytest.MonkeyPatch, machine: Machine, silent: str | None = None) -> None:
    """Replace what would ask the machine, Google and the workers."""
    monkeypatch.setattr("tpu_training.cluster.machine.find_machine", lambda: machine)
    monkeypatch.setattr("tpu_training.cluster.google.resolve", resolve)
    monkeypatch.setattr("tpu_training.cluster.endpoint.why_silent", lambda _: silent)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--tpu=grpc://a.b", "problem: grpc://a.b:8470: connection refused"),
        ("--tpu=gone", "problem: the TPU gone in z is PREEMPTED: delete it"),
        ("--tpu=My_TPU", "problem: --tpu: 'My_TPU' is neither a TPU's name nor an address"),
    ],
)
def test_a_silent_worker_a_preempted_tpu_and_a_wrong_value_are_problems(
    argument: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, Machine(), "connection refused")
    assert main(["doctor", "env", argument]) == 1
    assert problem in capsys.readouterr().out


def test_a_missing_tensorflow_is_a_problem_with_its_cure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, Machine())
    monkeypatch.setattr("importlib.metadata.packages_distributions", dict)
    assert main(["doctor", "env"]) == 1
    assert "TensorFlow is not installed: run pip install 'tpu-stack-training[cpu]'" in (
        capsys.readouterr().out
    )


def test_it_loads_no_tensorflow_and_refuses_a_worker_that_does_not_answer() -> None:
    script = """
import sys
from tpu_training.__main__ import main
code = main(["doctor", "env"])
assert "tensorflow" not in sys.modules
sys.exit(code)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"TPU_GRPC_URL": "grpc://127.0.0.1:1"},
    )
    assert not done.stderr
    assert done.returncode == 1
    assert "problem: grpc://127.0.0.1:1: connection refused" in done.stdout
