"""Callbacks of one's own, and the speed: what watches a training."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

from tests.unit.training.test_monitoring import read_events
from tpu_training.__main__ import parse
from tpu_training.errors import InputError
from tpu_training.job.job import Job, check_local_files
from tpu_training.job.run import create_observers, peak_flops
from tpu_training.loop.callbacks import LoopReport
from tpu_training.loop.graph import flops_of, repeat
from tpu_training.monitoring.measurements import Curves
from tpu_training.monitoring.summaries import Summaries
from tpu_training.monitoring.terminal import Progress

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

OWN = """
from tpu_training.loop.callbacks import Callback

class Diary(Callback):
    def __init__(self, path):
        self.path = path
    def write(self, line):
        with open(self.path, "a") as file:
            print(line, file=file)
    def start(self, step):
        self.write(f"start {step}")
    def between_loops(self, step, report):
        self.write(f"loop {step} {report.gradient_norm > 0} {report.flops:.0f}")
    def after_evaluation(self, step, figures):
        self.write(f"evaluation {step} {sorted(figures)}")
    def close(self):
        self.write("close")

def create_callbacks(job):
    return [Diary(f"{job.model_dir}/diary")]
"""


def loop_report(step: int = 10, last: int = 20, **changes: Any) -> LoopReport:
    given: dict[str, Any] = {"loss": 0.5, "metrics": {"accuracy": 0.9}, "seconds": 2.0}
    given |= {"learning_rate": 0.1, "checkpoint_seconds": 0.0, "gradient_norm": 3.0, "flops": 5e9}
    return LoopReport(step=step, last_step=last, count=10, **(given | changes))


def job(folder: Path, **params: Any) -> Job:
    where = ("--data=data", f"--model-dir={folder}")
    made = parse(["train", *where, *(f"--{name}={value}" for name, value in params.items())])
    assert isinstance(made, Job)
    return made


def test_callbacks_of_a_users_file_run_from_the_first_loop_to_the_last_evaluation(
    bars: Path, run_here: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "diary.py").write_text(OWN)
    sizes = ("--global_batch_size=64", "--evaluation_batch_size=64", "--snapshot_interval=0")
    where = (f"--data={bars}", f"--model-dir={tmp_path}", f"--callback={tmp_path / 'diary.py'}")
    parts = ("--steps_per_loop=3", "--epochs=0.6", "--gradient_accumulation=2")
    run_here("train-and-evaluate", *where, *sizes, *parts)
    # Two convolutions (the first needs no gradient of its input) and two dense layers, forward and
    # for two gradients.
    products = [(28 * 28 * 9 * 16, 2), (14 * 14 * 9 * 16 * 32, 3), (1568 * 128, 3), (128 * 10, 3)]
    flops = 64 * 2 * sum(product * times for product, times in products)
    assert (tmp_path / "diary").read_text().splitlines() == [
        "start 0",
        f"loop 3 True {flops}",
        f"loop 6 True {flops}",
        "evaluation 6 ['test/accuracy', 'test/loss']",
        "close",
    ]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["flops_per_second"] > 0
    assert "mfu" not in metrics


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", r"lacks a function `create_callbacks\(job\)`"),
        ("def create_callbacks(job):\n  return 3", "create_callbacks returned 3, expected a list"),
        ("def broken(", "line 1: SyntaxError"),
    ],
)
def test_a_file_without_callbacks_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InputError, match=words):
        create_observers(job(tmp_path, callback=tmp_path / "own.py"))


def test_a_missing_file_is_told_before_tensorflow_is_loaded(bars: Path, tmp_path: Path) -> None:
    wrong = dataclasses.replace(job(tmp_path, callback="no.py"), data=str(bars))
    with pytest.raises(InputError, match=r"no\.py: there is no such file"):
        check_local_files(wrong)


def test_operations_are_counted_from_shapes_and_those_of_a_loop_of_unknown_length_once() -> None:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.einsum("bij,bjk->bik", x, tf.ones((2, 5, 7)))
        y = tf.matmul(y, tf.ones((2, 4, 7)), transpose_b=True)
        y = tf.reshape(y, (8, 4)) @ tf.ones((4, 3))
        image = tf.nn.depthwise_conv2d(
            tf.ones((1, 6, 6, 2)), tf.ones((3, 3, 2, 1)), [1] * 4, "SAME"
        )
        inner = tf.function(lambda z: z @ tf.ones((3, 3)), autograph=False)
        y = inner(y) + inner(y)
        return repeat(3, y, lambda _, z: z @ tf.ones((3, 3))) + tf.reduce_sum(image)

    graph = step.get_concrete_function(tf.TensorSpec((2, 4, 5))).graph
    einsum, matmul, flat, depthwise, inner = 2 * 4 * 5 * 7, 2 * 4 * 7 * 4, 96, 648, 3 * 72
    assert flops_of(graph) == 2 * (einsum + matmul + flat + depthwise + inner)


def test_operations_of_a_map_and_of_its_gradient_are_counted_for_each_element() -> None:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.map_fn(lambda each: each @ tf.ones((5, 7)), x)
        return y, tape.gradient(y, x)

    graph = step.get_concrete_function(tf.TensorSpec((3, 4, 5))).graph
    assert flops_of(graph) == 2 * 2 * 3 * 4 * 5 * 7


def test_mfu_leaves_out_the_first_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    summaries = Summaries(str(tmp_path))
    progress = Progress(64, io.StringIO())
    speed = Curves(summaries, progress, peak=1e11)
    with caplog.at_level(logging.INFO):
        for step, seconds, norm in ((10, 60.0, 8.0), (20, 2.0, 3.0), (30, 3.0, 2.0)):
            speed.between_loops(step, loop_report(step, seconds=seconds, gradient_norm=norm))
        speed.close()
    summaries.close()
    assert speed.figures == {"flops_per_second": 2e10, "mfu": pytest.approx(0.2)}
    assert caplog.messages == [
        "gradient: norm 2 in the last loop, at most 8",
        "speed: 2e+10 FLOP/s, 20.0% of the peak (MFU)",
    ]
    values = [float(tf.make_ndarray(v.tensor)) for v in read_events(tmp_path)["train/mfu"]]
    assert values == pytest.approx([0.25, 5 / 30])


def test_the_peak_is_that_of_the_tpu_the_job_or_the_machine_names(
    tpu: Cluster, one_device: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peak_flops(job(tmp_path), tpu) == 0
    assert peak_flops(job(tmp_path, tpu_type="v2-8"), tpu) == pytest.approx(4 * 46e12)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v2-8")
    assert peak_flops(job(tmp_path), tpu) == pytest.approx(4 * 46e12)
    assert peak_flops(job(tmp_path), one_device) == 0
    with pytest.raises(InputError, match="--tpu_type=v2-9: unknown TPU type"):
        peak_flops(job(tmp_path, tpu_type="v2-9"), tpu)
