"""What `tpu-training compile` found of a stack's job, where people look at the stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import tpustack.project
from tests.compiled import EXAMPLES, keep_answer, write_data
from tpu_infra.settings.parse import parse
from tpustack import stacks
from tpustack.commands import training

from .conftest import Run

GIVEN = {"global_batch_size": "512", "epochs": "3"}


@pytest.fixture
def stack(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stack with a v3-8 that trains the MNIST network on data of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tpustack.project, "root", lambda: project)
    write_data(project / "data" / "mnist")
    path = project / "stacks" / "Pulumi.dev.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    config = content["config"]
    config["tpu-stack:zone"] = "us-central1-a"
    config["tpu-stack:tpu"] = {"acceleratorType": "v3-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pjrt"}
    config["tpu-stack:training"] = {
        "data": "data/mnist",
        "args": ["--global_batch_size=512", "--epochs=3"],
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return "dev"


def test_check_warns_of_a_job_that_does_not_fit_and_names_the_largest_batch(
    stack: str, run: Run
) -> None:
    keep_answer(GIVEN, needed_gib=16)
    done = run("check", "--stack", stack)
    assert done.code == 0
    warning = next(line for line in done.out.splitlines() if "does not fit" in line)
    assert warning == (
        "  warning: training.args: a step of batch 512 does not fit v3-8: a replica has 15.00 GiB "
        "and it needs 16.00 GiB (compiled, libtpu 9). The largest --global_batch_size that fits "
        "v3-8 is 8192, or 4096 without computing anything twice; or raise --gradient_accumulation"
    )


@pytest.mark.parametrize("needed", [4, None])
def test_check_does_not_warn_of_a_job_that_fits_or_was_never_compiled(
    needed: float | None, stack: str, run: Run
) -> None:
    if needed:
        keep_answer(GIVEN, needed_gib=needed)
    assert "fit v3-8" not in run("check", "--stack", stack).out


def test_cost_ends_with_what_an_epoch_costs_at_least(stack: str, run: Run) -> None:
    keep_answer(GIVEN, needed_gib=4)
    estimate = json.loads(run("cost", "--stack", stack, "--json").out)
    epoch = estimate["epoch"]
    assert epoch["examples"] == EXAMPLES
    hour = float(estimate["total"]["configured"]["hour"])
    assert float(epoch["dollars"]) == pytest.approx(hour * epoch["seconds"] / 3600)
    last = run("cost", "--stack", stack).out.splitlines()[-1]
    assert last.startswith(f"An epoch of {EXAMPLES:,} examples takes at least ")
    assert "not measured" in last
    assert "at least <" not in last


def test_cost_names_the_command_that_finds_out_what_an_epoch_costs(stack: str, run: Run) -> None:
    assert run("cost", "--stack", stack).out.splitlines()[-1] == (
        "What an epoch costs at least is unknown: `tpu-training compile --tpu=v3-8 "
        "--global_batch_size=512 --epochs=3 --data=data/mnist` finds it out."
    )
    assert json.loads(run("cost", "--stack", stack, "--json").out)["epoch"] is None


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        (True, "The largest --global_batch_size that fits v3-8 is 8192"),
        (False, "`tpu-training compile --tpu=v3-8 --global_batch_size=512 --epochs=3 "),
    ],
)
def test_doctor_answers_too_little_memory_with_the_largest_batch(
    known: bool, answer: str, stack: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        keep_answer(GIVEN, needed_gib=16)
    log = "ResourceExhaustedError: Ran out of memory in memory space hbm"
    monkeypatch.setattr(training, "_of_stack", lambda _: iter([("serial port", log)]))
    done = run("doctor", "--stack", stack)
    assert done.code == 1
    assert f"  fits:  {answer}" in done.out


def test_a_forecast_of_a_stack_takes_the_bound_that_was_compiled_or_names_the_command(
    stack: str, run: Run
) -> None:
    words = ("forecast", "--stack", stack, "--examples", "5120", "--json")
    done = run(*words)
    assert done.code == 2
    assert "or run `tpu-training compile --tpu=v3-8 --global_batch_size=512" in done.err
    keep_answer(GIVEN, needed_gib=4)
    training = json.loads(run(*words).out)["ways"][0]["training"]
    assert (training["tpu"], training["steps"], training["kind"]) == ("v3-8", 10, "bound")


@pytest.mark.parametrize(
    ("kind", "topology", "asked"),
    [
        ("ct6e-standard-4t", "2x2", "ct6e-standard-4t --data=DIR"),
        ("ct6e-standard-4t", "4x4", "ct6e-standard-4t:4x4 --data=DIR --backend=jax"),
        ("tpu7x-standard-4t", None, "tpu7x-standard-4t --data=DIR --backend=jax"),
    ],
)
def test_a_machine_of_compute_engine_is_compiled_for_as_it_trains(
    kind: str, topology: str | None, asked: str
) -> None:
    tpu = {"acceleratorType": kind, **({"topology": topology} if topology else {})}
    config = {
        "gcp:project": "my-project",
        "tpu-stack:architecture": "compute",
        "tpu-stack:zone": "us-east5-a",
        "tpu-stack:tpu": tpu,
    }
    assert stacks.asking(parse(config, "dev")) == f"tpu-training compile --tpu={asked}"
