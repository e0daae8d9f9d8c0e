"""What a TPU does not take is named, all of it, with the line of the user's own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import tpu_training
from tpu_training.compile.lowering import line_of, train_program
from tpu_training.compile.session import described_data
from tpu_training.errors import LoweringError
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

pytestmark = pytest.mark.training

OWN = '''"""A linear model that does one thing more."""

import tensorflow as tf

from tpu_training.models.layers import Dense, normalise
from tpu_training.models.params import Params


class Own(tf.Module):
    def __init__(self, params, spec, seed):
        super().__init__()
        self.dtype = tf.as_dtype(params.precision)
        self.output = Dense(28 * 28, spec.classes, seed)

    def __call__(self, features, training):
        x = tf.reshape(normalise(features, self.dtype), (-1, 28 * 28))
LINES
        return tf.cast(self.output(x), tf.float32)


def create_model(params, spec, seed):
    return Own(params, spec, seed)
'''
FIRST_LINE = OWN[: OWN.index("LINES")].count("\n") + 1

Refused = Callable[[str], str]


@pytest.fixture
def lower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a program of an own model with these lines, from the folder of its file."""

    def make(lines: str) -> None:
        indented = "\n".join(" " * 8 + line for line in lines.splitlines())
        (tmp_path / "own.py").write_text(OWN.replace("LINES", indented))
        monkeypatch.chdir(tmp_path)
        train_program(load_model("own.py"), Params(), described_data("28x28x1", 10), 8)

    return make


@pytest.fixture
def refused(lower: Callable[[str], None]) -> Refused:
    """Returns the message of a model that has these lines and can't be made a program."""

    def message(lines: str) -> str:
        with pytest.raises(LoweringError) as caught:
            lower(lines)
        return str(caught.value)

    return message


def test_a_model_that_a_tpu_takes_is_not_refused(lower: Callable[[str], None]) -> None:
    lower("x = tf.nn.relu(x)")


def test_every_operation_without_a_kernel_is_named_also_in_loops_and_branches(
    refused: Refused,
) -> None:
    message = refused(
        "tf.print('x', x)\n"
        "if tf.reduce_sum(x) > 3.0:\n"
        "    x += tf.cast(tf.strings.length(tf.strings.as_string(x)), x.dtype)\n"
        "for _ in tf.range(3):\n"
        "    x = tf.ensure_shape(tf.py_function(lambda y: y, [x], x.dtype), x.shape)\n"
        "big = tf.image.resize(features, (28, 28), 'bicubic')\n"
        "x += tf.cast(tf.reshape(big, (-1, 784)), x.dtype)"
    )
    lines = {name: FIRST_LINE + offset for name, offset in OFFSETS.items()}
    for name, line in lines.items():
        assert f"own.py:{line}: {name} has no kernel for TPUs" in message
    assert message.count("own.py:") == len(lines), message
    assert message.startswith("the training step can't run on a TPU: own.py:")
    assert "move it to the input pipeline" in message


OFFSETS = {
    "PrintV2": 0,
    "StringFormat": 0,
    "AsString": 2,
    "StringLength": 2,
    "EagerPyFunc": 4,
    "ResizeBicubic": 5,
}


def test_a_shape_that_depends_on_the_data_is_named_with_its_line(refused: Refused) -> None:
    message = refused(
        "count = tf.cast(features[0, 0, 0, 0], tf.int32)\nx += tf.zeros((count, 1), x.dtype)"
    )
    assert f"own.py:{FIRST_LINE + 1}: Fill needs its input 0 before the step runs" in message
    assert "use a size that doesn't depend on the data" in message


def test_a_dynamic_shape_and_a_missing_kernel_in_a_loop_are_both_named(
    refused: Refused,
) -> None:
    message = refused(
        "x += tf.zeros((tf.cast(features[0, 0, 0, 0], tf.int32), 1), x.dtype)\n"
        "for number in tf.range(3):\n"
        "    x += tf.cast(tf.strings.length(tf.strings.as_string(number)), x.dtype)"
    )
    assert f"own.py:{FIRST_LINE}: Fill needs its input 0" in message
    assert f"own.py:{FIRST_LINE + 2}: AsString has no kernel" in message


def test_a_value_that_python_reads_while_the_step_is_traced_is_named_with_its_line(
    refused: Refused,
) -> None:
    message = refused("x = x * 2\nx = x[: features.numpy().max()]")
    assert message.startswith("the training step can't become a graph: own.py:")
    assert f"own.py:{FIRST_LINE + 1}: " in message
    assert "must be known before the step runs" in message


def test_a_lookup_table_is_named_with_its_line(refused: Refused) -> None:
    message = refused(
        "content = tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4])\n"
        "with tf.init_scope():\n"
        "    self.table = tf.lookup.StaticHashTable(content, 0)\n"
        "x += tf.cast(self.table.lookup(tf.cast(x, tf.int32)), x.dtype)"
    )
    assert f"own.py:{FIRST_LINE + 3}: LookupTableFindV2" in message


def test_a_keras_layer_is_named_rather_than_the_line_that_calls_all_layers() -> None:
    package = Path(tpu_training.__file__).parent
    frames = [
        SimpleNamespace(filename=str(package / "loop" / "replica_step.py"), lineno=80),
        SimpleNamespace(filename=str(package / "models" / "keras.py"), lineno=42),
    ]
    assert line_of(SimpleNamespace(traceback=frames)) == ""
    own = SimpleNamespace(filename="/somewhere/net.py", lineno=7)
    assert line_of(SimpleNamespace(traceback=[*frames, own])) == "/somewhere/net.py:7"
