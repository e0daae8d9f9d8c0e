"""`tpu-training compile` with TensorFlow and Google's compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tpu_training.__main__ import main
from tpu_training.compile import cached
from tpu_training.compile.session import described_data

pytest.importorskip("libtpu")
pytestmark = pytest.mark.training

JOB = ("--model=mnist_cnn", "--shape=28x28x1", "--classes=10", "--examples=60000")
OWN = """
import tensorflow as tf
from tpu_training.models.layers import Dense, normalise
from tpu_training.models.params import Params as Base
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Params(Base):
    pass

class Own(tf.Module):
    def __init__(self, params, spec, seed):
        super().__init__()
        self.output = Dense(16 * 16, spec.classes, seed)

    def __call__(self, features, training):
        resized = tf.image.resize(normalise(features, tf.float32), (16, 16), "bicubic")
        return self.output(tf.reshape(resized, (-1, 16 * 16)))

def create_model(params, spec, seed):
    return Own(params, spec, seed)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compile")


@pytest.fixture(autouse=True)
def _cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def compile_(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["compile", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_step_is_compiled_and_its_answer_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compile_(capsys, *JOB, "--tpu=v3-8", "--quick", "--json")
    assert (code, err) == (0, "")
    (answer,) = json.loads(out)["answers"]
    memory: dict[str, Any] = answer["train"]
    weights = {one["kind"]: one["bytes"] for one in memory["usage"]}["weights"]
    # 28,938 weights of float32, in tiles.
    assert 0.1e6 < weights < memory["needed_bytes"] < memory["limit_bytes"]
    assert 15 << 30 < memory["limit_bytes"] < 16 << 30
    assert any("models/networks.py:" in one["where"] for one in memory["buffers"])
    assert 0 < answer["bound"]["seconds"] < 1e-3
    assert 0 < answer["bound"]["utilisation"] < 1
    kept = cached("v3-8", "mnist_cnn", {}, described_data("28x28x1", 10))
    assert kept is not None
    assert kept.train.needed_bytes == memory["needed_bytes"]


@pytest.mark.parametrize(
    ("tpu", "replicas"), [("tpu7x-standard-4t", 8), ("tpu7x-standard-4t:2x2x2", 16)]
)
def test_the_compiler_knows_a_tpu7x(
    capsys: pytest.CaptureFixture[str], tpu: str, replicas: int
) -> None:
    asked = (*JOB, f"--tpu={tpu}", "--backend=jax", "--quick", "--json")
    code, out, err = compile_(capsys, *asked)
    assert (code, err) == (0, "")
    (answer,) = json.loads(out)["answers"]
    assert answer["replicas"] == replicas
    assert answer["train"]["limit_bytes"] / 2**30 == pytest.approx(94.7, abs=0.1)
    assert answer["bound"]["parts"].keys() == {
        "matrix units",
        "HBM bandwidth",
        "links between chips",
    }


@pytest.mark.slow
def test_a_step_keeps_neither_scores_nor_logits_of_8192_tokens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Two layers of the smallest GPT-2. The scores of each would take 1.5 GiB more, and the logits
    # 0.6; ten layers more take 3.0, and 5.5 of a v3 core's 15.5 in all (docs/own-model.md).
    job = ("--model=bert", "--task=causal_lm", "--shape=8193", "--vocabulary=50304")
    size = ("--layers=2", "--hidden_size=768", "--heads=12", "--precision=bfloat16")
    more = ("--classes=1", "--global_batch_size=8", "--tpu=v3-8", "--quick", "--json")
    code, out, _ = compile_(capsys, *job, *size, *more)
    (answer,) = json.loads(out)["answers"]
    assert (code, answer["train"]["needed_bytes"] < 2.6 * 2**30) == (0, True)


def test_unsupported_operations_are_named_with_the_users_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN)
    line = OWN.splitlines().index(
        '        resized = tf.image.resize(normalise(features, tf.float32), (16, 16), "bicubic")'
    )
    data = ("--shape=28x28x1", "--classes=10")
    code, out, err = compile_(capsys, f"--model={own}", *data, "--tpu=v2-8", "--quick")
    assert (code, out) == (2, "")
    assert f"own.py:{line + 1}: ResizeBicubic has no kernel for TPUs" in err
    assert "training step can't run on a TPU" in err
    assert "evaluation step can't run on a TPU" in err
