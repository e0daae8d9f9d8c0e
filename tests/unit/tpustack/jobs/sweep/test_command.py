"""`tpustack job sweep` and `job trials`, against a bucket of the local cloud."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.tpustack.conftest import Run
from tpu_agent.jobs.queue import Queue, Spec
from tpustack.jobs import sweep
from tpustack.jobs.command import command_of
from tpustack.stacks import load

from .machine import Machine

pytest.importorskip("optuna")
pytest.importorskip("matplotlib")

RATE = ("--param", "rate=1e-4..1e-1:log")


@pytest.fixture
def machine(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One that runs what the bucket's queue has, as long as the test takes."""
    monkeypatch.setattr(sweep, "_PAUSE", 0.05)
    made, over = Machine(queue), threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            made.turn()

    thread = threading.Thread(target=run)
    thread.start()
    yield made
    over.set()
    thread.join()


@pytest.mark.slow
def test_a_sweep_ends_with_its_trials_as_table_json_and_picture(
    job: Run, machine: Machine, queue: Queue, folder: Path, tmp_path: Path
) -> None:
    done = job(
        *("sweep", "-c", "python main.py", "--dir", str(folder), *RATE, "--trials", "3"),
        *("--name", "s", "--plot", str(tmp_path / "trials.svg"), "--json"),
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert [one["state"] for one in told["trials"]] == ["complete"] * 3
    assert told["trials"][told["best"]]["value"] == min(one["value"] for one in told["trials"])
    assert "trial 0 is submitted as s-000: rate=" in done.err
    assert {job.split()[0] for job in machine.ran} == {"python"}
    assert "<svg" in (tmp_path / "trials.svg").read_text("utf-8")
    again = job("trials", "s", "--plot", str(tmp_path / "again.png"))
    assert (tmp_path / "again.png").read_bytes().startswith(b"\x89PNG")
    assert f"{told['best']} *" in again.out
    resumed = job("trials", "s", "--resume", "--json")
    assert (resumed.code, json.loads(resumed.out)) == (0, told)
    assert len(machine.ran) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", "x"), "Missing option '--param'"),
        (("-c", "python gone.py", *RATE), "it runs gone.py"),
        (("-c", "x", *RATE, "--name", "No"), "'No' is not a name of a sweep"),
        (("-c", "x", *RATE, "--on", "vertex"), "No such option '--on'"),
        (("-c", "x", *RATE, "--plot", "a.gif"), "--plot: a.gif ends with neither .png nor .svg"),
        (("-c", "x", *RATE, "--plot", "/gone/a.png"), "--plot: there is no folder /gone"),
        (RATE, "--command: (not given), and without --stack"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_invalid_sweep_is_refused_and_writes_nothing(
    job: Run, queue: Queue, arguments: tuple[str, ...], said: str
) -> None:
    done = job("sweep", *arguments)
    assert done.code != 0
    assert said in done.err
    assert "Traceback" not in done.err
    assert not list(queue.store.items(""))


def test_a_sweep_that_was_never_begun_can_not_be_resumed(job: Run) -> None:
    done = job("trials", "gone", "--resume")
    assert (done.code, "there is no sweep gone in gs://a-bucket" in done.err) == (2, True)


def test_table_and_picture_take_any_text(job: Run, queue: Queue, tmp_path: Path) -> None:
    values: dict[str, sweep.Value] = {"rate": 0.1, "kind": "[/x]"}
    trial = sweep.Trial(0, "a-bucket", "s-000", values, sweep.COMPLETE, ((1, 0.5),), 0.5)
    asked = sweep.Sweep(
        name="s",
        params=("rate=0.01..1.0:log", "kind=[/x],b"),
        spec=Spec(command="x", kind="none"),
        metric="\x1b$\\loss",
        goal=sweep.MINIMIZE,
        wanted=1,
        parallel=1,
        seed=0,
        buckets=("a-bucket",),
        trials=(trial,),
    )
    sweep.Record(queue.store, "s").write(asked)
    shown = job("trials", "s", "--plot", str(tmp_path / "trials.svg"))
    assert shown.code == 0
    assert "0 *" in shown.out
    assert "[/x]" in shown.out
    assert "\x1b" not in shown.out
    (tmp_path / "folder.svg").mkdir()
    failed = job("trials", "s", "--plot", str(tmp_path / "folder.svg"))
    assert (failed.code, "0 *" in failed.out) == (1, True)
    assert "folder.svg can't be written" in failed.err


def test_a_sweep_without_a_command_varies_the_stacks_training(project: Path) -> None:
    said = command_of("dev")
    assert said.startswith("python -m tpu_training train-and-evaluate ")
    assert all(argument in said for argument in load("dev").training.args)
