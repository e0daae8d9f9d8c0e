"""A model of the user's own is checked before the first step; its faults come with their line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpu_training.data.manifest import RAW, Manifest, stored_spec
from tpu_training.errors import InputError, translate
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

HEAD = """from dataclasses import dataclass
import tensorflow as tf
from tpu_training.models import params as base

@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    width: int = base.param(7, "neurons", 1, 100)
"""
NET = """
class Net(tf.Module):
    def __init__(self, params, spec, seed):
        super().__init__()
        self.kernel = tf.Variable(tf.zeros((784, spec.classes)))

    def __call__(self, features, training):
        x = tf.reshape(tf.cast(features, tf.float32), (-1, 784))
        return x @ self.kernel

def create_model(params, spec, seed):
    return Net(params, spec, seed)
"""
RETURN = "        return x @ self.kernel\n"
MANIFEST = Manifest("d", stored_spec(RAW, (28, 28, 1), 3), RAW, {})


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def trace(cluster: Cluster, path: Path, text: str) -> None:
    """Build the model in `text` and the graph of one step for four examples of three classes."""
    import tensorflow as tf

    from tpu_training.loop.state import create_train_state

    path.write_text(text)
    definition = load_model(str(path))
    params = definition.params()
    state = create_train_state(cluster, definition, params, MANIFEST, steps=5)

    def step(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return state.losses(state.forward(features, training=True), labels, params)

    specs = tf.TensorSpec((4, 28, 28, 1), tf.uint8), tf.TensorSpec((4,), tf.int32)
    tf.function(step, autograph=False).get_concrete_function(*specs)


@pytest.mark.parametrize(
    ("end", "returned"),
    [
        ("tf.zeros((4, 7)) + x[:, :7]", "float32 of the shape (4, 7)"),
        ("tf.reduce_sum(x, axis=1)", "float32 of the shape (4,)"),
        ("tf.cast(x @ self.kernel, tf.bfloat16)", "bfloat16 of the shape (4, 3)"),
        ("x @ self.kernel, x", "a tuple"),
        ("None", "None"),
    ],
)
def test_logits_that_do_not_fit_the_data_are_refused_with_both_shapes(
    one_device: Cluster, tmp_path: Path, end: str, returned: str
) -> None:
    text = HEAD + NET.replace("x @ self.kernel", end)
    with pytest.raises(InputError) as caught:
        trace(one_device, tmp_path / "own.py", text)
    assert str(caught.value) == (
        f"{tmp_path}/own.py:{line_of(text, 'def __call__')}: Net returned {returned}, expected "
        "logits, float32 of the shape (4, 3): a number for each of the dataset's 3 classes"
    )


@pytest.mark.parametrize(
    ("loss", "returned"),
    [
        ("tf.reduce_mean(logits)", "float32 of the shape ()"),
        ("logits", "float32 of the shape (4, 3)"),
        ("labels", "int32 of the shape (4,)"),
    ],
)
def test_a_loss_that_is_not_one_for_each_example_is_refused(
    one_device: Cluster, tmp_path: Path, loss: str, returned: str
) -> None:
    text = f"{HEAD}{NET}\n\ndef losses(logits, labels, params):\n    return {loss}\n"
    with pytest.raises(InputError) as caught:
        trace(one_device, tmp_path / "own.py", text)
    assert str(caught.value) == (
        f"{tmp_path}/own.py:{line_of(text, 'def losses')}: losses returned {returned}, expected "
        "the loss of each example, float32 of the shape (4,)"
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("None", "create_model returned None, expected a tf.Module"),
        ("[3]", "create_model returned a list, expected a tf.Module"),
        ("tf.Module()", "create_model returned a Module that can't be called"),
        ("Net.__new__(Net)", "has no trainable variables: keep layers and variables as attributes"),
    ],
)
def test_a_return_value_that_is_not_a_model_is_refused(
    one_device: Cluster, tmp_path: Path, made: str, words: str
) -> None:
    text = HEAD + NET.replace("Net(params, spec, seed)", made)
    with pytest.raises(InputError) as caught:
        trace(one_device, tmp_path / "own.py", text)
    assert f"own.py:{line_of(text, 'def create_model')}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        return x @ self.kernel", "        return tf.matmul(x, tf.ones((5, 5)))"),
        ("        return x @ self.kernel", "        return helper(x)"),
        ("    return Net(params, spec, seed)", "    return Net(params)"),
        ("        super().__init__()", "        spec.nothing"),
    ],
)
def test_an_exception_in_the_file_names_its_line(
    one_device: Cluster, tmp_path: Path, old: str, new: str
) -> None:
    helper = (
        "\n@tf.autograph.experimental.do_not_convert\ndef helper(x):\n    return x.no_such_thing\n"
    )
    text = HEAD + helper + NET.replace(old, new)
    with pytest.raises(Exception, match=r".") as caught:
        trace(one_device, tmp_path / "own.py", text)
    line = line_of(text, "x.no_such_thing" if "helper" in new else new)
    found = translate(caught.value)
    assert isinstance(found, InputError)
    assert str(found).startswith(f"{tmp_path}/own.py:{line}: {type(caught.value).__name__}: ")


def test_an_exception_while_tracing_a_step_names_its_line(
    digits: Path, tmp_path: Path, run_here: Callable[..., None]
) -> None:
    """TensorFlow's message has the stack of the operation, with the user's lines last."""
    text = HEAD + NET.replace(
        RETURN, "        x += tf.gather(tf.zeros(5), tf.shape(x)[0])\n" + RETURN
    )
    (tmp_path / "own.py").write_text(text)
    job = (f"--data={digits}", f"--model-dir={tmp_path}", "--global_batch_size=64")
    with pytest.raises(Exception, match="indices = 64 is not in") as caught:
        run_here("train", f"--model={tmp_path}/own.py", *job)
    assert f"{tmp_path}/own.py:{line_of(text, 'x += tf')}: InvalidArgumentError: indices" in str(
        translate(caught.value)
    )


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("depth: int = 3", 'depth: declare it with base.param(3, "what it means")'),
        ("depth: int", "depth: declare it with base.param(DEFAULT"),
        ("epochs: float = 2.0", 'epochs: declare it with base.changed("epochs", 2.0)'),
        (
            "sizes: tuple = base.param((1, 2), 'of layers')",
            "sizes: its type tuple doesn't fit a command line; expected bool, int, float, str, one",
        ),
        ("depth: 'itn' = base.param(3, 'x')", "depth: NameError: name 'itn' is not defined"),
        ("depth: 'int | ' = base.param(3, 'x')", "depth: SyntaxError: "),
        ("depth: int = base.param('a', 'x')", "depth: its default 'a': expected a whole number"),
        ("depth: int = base.param(9, 'x', 1, 5)", "depth: its default 9: must be at most 5"),
    ],
)
def test_an_undeclared_parameter_field_is_refused_with_its_line(
    tmp_path: Path, field: str, words: str
) -> None:
    text = f"{HEAD}    {field}\n{NET}"
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path / "own.py"))
    assert f"{tmp_path}/own.py:{line_of(text, field)}: {words}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [("x = 1\ndef f(:\n", 2), ("x = 1\n\nx = unknown\n", 3), ("import os\nos.nothing()\n", 2)],
)
def test_a_file_that_fails_to_load_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int
) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InputError, match=rf"--model=.*own\.py: line {line}: \w+Error: "):
        load_model(str(tmp_path / "own.py"))


@pytest.mark.parametrize("package", ["tf_keras", "keras"])
def test_a_model_of_keras_2_is_refused_with_the_cure(
    one_device: Cluster, tmp_path: Path, package: str
) -> None:
    text = (
        f'class Model:\n    __module__ = "{package}.src.engine.training"\n\n\n'
        "def create_model():\n    return Model()\n"
    )
    with pytest.raises(InputError) as caught:
        trace(one_device, tmp_path / "own.py", text)
    assert str(caught.value).startswith(f"{tmp_path}/own.py:5: the model is of {package} ")
    assert "needs Keras 3; install TensorFlow 2.16 or later" in str(caught.value)
