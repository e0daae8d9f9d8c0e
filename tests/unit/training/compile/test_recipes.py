"""Every built-in model and recipe compiles for every generation of TPUs, and needs no more memory.

The compiler is Google's own. What it needs was recorded (tests/steps.yaml); the large models are
compiled here for two generations, and by `make bench` for all.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Protocol

import pytest

from tests import steps
from tpu_training.compile.answer import Compiled, Topology, tpus
from tpu_training.compile.session import described_data
from tpu_training.models.registry import BUILT_IN, ModelDefinition, load_model

pytestmark = [
    pytest.mark.training,
    # TensorFlow splits the CPU only before its first operation; other tests need that.
    pytest.mark.usefixtures("cluster"),
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu here"),
]

NAMES = sorted(steps.content()["jobs"])


@pytest.mark.parametrize("kind", steps.KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_step_compiles_for_its_generations_and_needs_the_memory_it_did(
    name: str, kind: str
) -> None:
    assert list(steps.problems(name, kind, steps.jobs()[name].always)) == []


def test_a_step_of_256_replicas_compiles() -> None:
    tpu = tpus()["v3-256"]
    assert tpu.replicas == 256
    assert steps.program("mnist", "train", tpu.replicas).replicas == 256
    assert steps.compiled("mnist", "train", tpu).fits


def test_every_built_in_model_and_every_recipe_is_among_the_steps() -> None:
    described = steps.content()["jobs"].values()
    recipes = {job["recipe"] for job in described if "recipe" in job}
    assert recipes == {file.name for file in steps.RECIPES.glob("*.yaml")}
    assert {job.model.name for job in steps.jobs().values()} == set(BUILT_IN)


def test_every_figure_is_recorded() -> None:
    for job in steps.jobs().values():
        assert {kind: set(job.figures[kind]) for kind in steps.KINDS} == {
            kind: set(steps.TYPES) for kind in steps.KINDS
        }


class Changed(Protocol):
    """Returns the problems of MNIST's training step on v2 after a change of its job."""

    def __call__(self, **changes: object) -> list[str]: ...


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Changed:
    def problems(**changes: object) -> list[str]:
        job = dataclasses.replace(steps.jobs()["mnist"], **changes)  # type: ignore[arg-type]
        monkeypatch.setattr(steps, "jobs", lambda: {"mnist": job})
        monkeypatch.setattr(steps, "program", steps.program.__wrapped__)
        return list(steps.problems("mnist", "train", ("v2",)))

    return problems


def own_model(folder: Path, line: str) -> ModelDefinition:
    (folder / "own.py").write_text(OWN.replace("LINE", line))
    return load_model(str(folder / "own.py"))


OWN = """import tensorflow as tf
from tpu_training.models.layers import Dense
from tpu_training.models.params import Params

class Own(tf.Module):
    def __init__(self, spec, seed):
        super().__init__()
        self.output = Dense(784, spec.classes, seed)

    def __call__(self, features, training):
        x = tf.reshape(tf.cast(features, tf.float32), (-1, 784))
        LINE
        return self.output(x)

def create_model(params, spec, seed):
    return Own(spec, seed)
"""


def test_an_operation_that_tpus_lack_fails_the_check(changed: Changed, tmp_path: Path) -> None:
    line = "x += tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)"
    (problem,) = changed(model=own_model(tmp_path, line))
    assert problem.startswith("mnist: the training step can't run on a TPU: ")
    assert "own.py:12: AsString has no kernel for TPUs" in problem


def test_a_dynamic_shape_fails_the_check(changed: Changed, tmp_path: Path) -> None:
    (problem,) = changed(model=own_model(tmp_path, "x += tf.zeros((features[0, 0, 0, 0], 1))"))
    assert problem.startswith("mnist: the training step can't run on a TPU: ")
    assert "own.py:12: Fill needs its input 0 before the step runs" in problem


def test_too_large_a_batch_fails_the_check(changed: Changed) -> None:
    job = steps.jobs()["mnist"]
    params = dataclasses.replace(job.params, global_batch_size=1 << 20)
    (problem,) = changed(params=params, manifest=described_data("64x64x1", 10))
    assert problem.startswith("mnist: the training step needs ")
    assert " MiB of a core of v2-8, which has 7,6" in problem


@pytest.mark.parametrize(
    ("needed", "sentence"),
    [
        (105, "needs 105.0 MiB of a core of v3-8, 5% more than the 100.0 MiB recorded in "),
        (95, "needs 95.0 MiB of a core of v3-8, 5% less than the 100.0 MiB recorded in "),
        (104, ""),
        (96, ""),
    ],
)
def test_a_need_that_changed_by_five_percent_fails_the_check(needed: int, sentence: str) -> None:
    topology = Topology("v3-8", "v3:2x2x1")
    answer = Compiled("train", topology, "libtpu", needed << 20, 16 << 30, (), ())
    said = steps.judge(answer, 100 << 20)
    assert said.startswith(sentence)
    assert bool(said) == bool(sentence)
