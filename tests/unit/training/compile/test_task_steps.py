"""The steps of other tasks than classification compile for TPUs, with Google's own compiler.

Those with what TPUs are picky about: float64, bits, ids that are drawn.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from tpu_training.compile.answer import tpus
from tpu_training.compile.compiler import compile_program
from tpu_training.compile.session import cached_job, topology_of
from tpu_training.data.manifest import RAW, TOKENS, Manifest, Split, stored_spec
from tpu_training.models.registry import load_model
from tpu_training.models.spec import NUMBERS
from tpu_training.tasks import with_task

pytestmark = [
    pytest.mark.training,
    # TensorFlow splits the CPU only before its first operation; other tests need that.
    pytest.mark.usefixtures("cluster"),
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="no libtpu here"),
]

SPLITS = {name: Split(0, ()) for name in ("train", "test")}
TEXTS = Manifest("texts", stored_spec(TOKENS, (16,), 2, 40), TOKENS, SPLITS)
NUMBERED = Manifest("numbers", stored_spec(RAW, (8, 8, 1), 3, targets=NUMBERS), RAW, SPLITS)


@pytest.mark.parametrize(
    ("model", "task", "kind", "data"),
    [
        ("mnist_cnn", "regression", "evaluate", NUMBERED),
        ("bert", "masked_lm", "evaluate", TEXTS),
        ("bert", "masked_lm", "train", TEXTS),
        ("bert", "causal_lm", "train", TEXTS),
    ],
)
def test_a_step_compiles(model: str, task: str, kind: str, data: Manifest) -> None:
    from tpu_training.compile.lowering import evaluation_program, train_program

    make = {"train": train_program, "evaluate": evaluation_program}[kind]
    definition = with_task(load_model(model), task)
    params = dataclasses.replace(definition.params(), evaluation_batch_size=64)
    tpu = tpus()["v5litepod-8"]
    program = make(definition, params, data, tpu.replicas)
    assert compile_program(program, topology_of(tpu)).fits


def test_a_task_has_an_answer_of_its_own_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it stands in the parameter file or on the command line."""
    config = tmp_path / "c.yaml"
    config.write_text("model: bert\ntask: masked_lm\n")
    asked: list[str] = []
    monkeypatch.setattr("tpu_training.compile.session.load_entry", lambda key, _: asked.append(key))
    for arguments in (
        ["--model=bert"],
        ["--model=bert", "--task=masked_lm"],
        [f"--config={config}"],
        ["--model=bert", "--task=causal_lm"],
    ):
        assert cached_job("v3-8", arguments, TEXTS) is None
    assert len(asked) == 4
    assert len(set(asked)) == 3
    assert asked[1] == asked[2]
