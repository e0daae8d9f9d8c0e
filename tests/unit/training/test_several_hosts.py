"""`--backend=jax` on several hosts: processes of this machine, each with a CPU of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import PATIENCE, until

pytest.importorskip("jax", minversion="0.6.2")
pytestmark = pytest.mark.training

DEVICES = 4
RANDOM = np.random.default_rng(4)
ROWS = RANDOM.normal(size=(100, 6)).astype("f4")
CLASSES = (ROWS.argmax(axis=1) // 2).astype(np.int64)
# The numbers of examples fit no batch.
DATA = {"train": (ROWS[:69], CLASSES[:69]), "test": (ROWS[69:], CLASSES[69:])}
SIZES: dict[str, Any] = {
    "global_batch_size": 16,
    "evaluation_batch_size": 16,
    # So that loops are the same however slow the machine is.
    "steps_per_loop": 1,
    "steps": 40,
    "checkpoint_interval": 6,
    "learning_rate": 0.02,
    "seed": 3,
}


def network(params: Any, spec: Any, seed: int) -> Any:
    """Return a model that draws at random in each step and has averages of its batches."""
    import keras

    rows = keras.Input((6,))
    hidden = keras.layers.Dense(8, activation="relu")(rows)
    hidden = keras.layers.BatchNormalization(momentum=0.8)(hidden)
    return keras.Model(rows, keras.layers.Dense(3)(keras.layers.Dropout(0.3)(hidden)))


def train(model_dir: str, devices: str, out: str, pause: str) -> None:
    """Train, and write the weights, metrics and history to `out`; rest a while between loops."""
    import time

    import tpu_training
    from tpu_training.compile.programs import import_tensorflow

    import_tensorflow()

    class Rest(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            print(f"at step {step}", flush=True)
            time.sleep(float(pause))

    result = tpu_training.fit(
        network,
        data=DATA,
        model_dir=model_dir,
        mode="train-and-evaluate",
        backend="jax",
        local_devices=int(devices),
        callbacks=[Rest()],
        connect_tries=60,
        **SIZES,
    )
    weights = {str(at): each.numpy() for at, each in enumerate(result.model.variables)}
    told = json.dumps({"metrics": dict(result.metrics), "history": [*result.history]})
    np.savez(out, told=np.array(told), **weights)


class Host:
    """A process that trains."""

    def __init__(self, folder: Path, model_dir: Path, place: Mapping[str, str], **how: Any) -> None:
        self.out, self.log = folder / "out.npz", folder / "log"
        folder.mkdir()
        code = "import sys; from tests.unit.training.test_several_hosts import train; "
        given = [str(model_dir), str(how["devices"]), str(self.out), str(how["pause"])]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-c", f"{code}train(*sys.argv[1:])", *given],
                env={**os.environ, "JAX_PLATFORMS": "cpu", **place},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the weights, and the metrics and history."""
        assert self.end() == 0, self.said
        with np.load(self.out) as found:
            weights = {name: found[name] for name in found.files if name != "told"}
            return weights, json.loads(str(found["told"]))


@contextmanager
def one(folder: Path) -> Iterator[Host]:
    host = Host(folder, folder.parent / f"{folder.name}-results", {}, devices=DEVICES, pause=0)
    with host.process:
        try:
            yield host
        finally:
            host.process.kill()


@contextmanager
def several(
    count: int, folder: Path, model_dir: Path, pause: float = 0
) -> Iterator[tuple[Host, ...]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder.mkdir()
    place = {"JAX_COORDINATOR_ADDRESS": address, "JAX_COORDINATOR_BIND_ADDRESS": address}
    with ExitStack() as stack:
        made = []
        for index in range(count):
            own = place | {"JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(index)}
            devices = DEVICES // count
            host = Host(folder / str(index), model_dir, own, devices=devices, pause=pause)
            stack.enter_context(host.process)
            stack.callback(host.process.kill)
            made.append(host)
        yield tuple(made)


def same(mine: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    for name, values in other.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One host with as many devices."""
    with one(tmp_path_factory.mktemp("alone") / "one") as host:
        yield host


@pytest.mark.parametrize("count", [2, 4])
def test_several_hosts_train_as_one_that_has_their_devices(
    count: int, tmp_path: Path, alone: Host
) -> None:
    with several(count, tmp_path / "all", tmp_path / "results") as hosts:
        expected, told = alone.result()
        weights, figures = zip(*(host.result() for host in hosts), strict=True)
    for mine, said in zip(weights, figures, strict=True):
        same(mine, expected)
        for loop, other in zip(said["history"], told["history"], strict=True):
            assert loop == pytest.approx(other, rel=1e-5)
        for name in ("test_loss", "test_accuracy", "test_examples", "steps", "replicas"):
            assert said["metrics"][name] == pytest.approx(told["metrics"][name], rel=1e-5)
    assert told["metrics"]["test_examples"] == 31
    # One of them writes.
    for kind in ("tensorboard", "ledger"):
        assert len([*(tmp_path / "results" / kind).iterdir()]) == 1


def test_hosts_resume_after_one_was_asked_to_end_and_after_one_was_killed(
    tmp_path: Path, alone: Host
) -> None:
    results = tmp_path / "results"
    with several(2, tmp_path / "first", results, pause=0.5) as (first, second):
        until(lambda: "at step 4\n" in second.said)
        second.process.send_signal(signal.SIGTERM)
        assert [first.end(), second.end()] == [75, 75], first.said + second.said
    saved = newest(results)
    assert f"another host has to end; step {saved} is saved" in first.said
    assert f"received SIGTERM; step {saved} is saved" in second.said

    with several(2, tmp_path / "next", results, pause=0.5) as (first, second):
        until(lambda: newest(results) > saved)
        second.process.kill()
        assert first.end() == 1, first.said
    assert "host 1 ended without a word" in first.said
    reached = newest(results)
    assert saved < reached < SIZES["steps"]

    with several(2, tmp_path / "last", results) as (first, second):
        resumed, _ = first.result()
        assert second.end() == 0, second.said
    assert f"restored {results}/checkpoints/ckpt-{reached}" in first.said
    same(resumed, alone.result()[0])


def newest(results: Path) -> int:
    names = (results / "checkpoints").glob("ckpt-*.index")
    return max((int(each.stem.partition("-")[2]) for each in names), default=0)
