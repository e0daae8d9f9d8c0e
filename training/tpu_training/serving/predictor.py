"""Run a SavedModel on this machine, from arrays to arrays."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.errors.catalog import describe
from tpu_training.serving.export.saved_model import SIGNATURE

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the signature; None in its shape stands for any size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class Predictor:
    """The newest version of a SavedModel. Thread-safe."""

    def __init__(self, saved_model: str) -> None:
        """Load the directory `saved_model`, or the highest of the numbered directories in it.

        Raises:
            InputError: There is no SavedModel, or its signature does not have exactly one input.
        """
        path, self.version = _newest(saved_model)
        try:
            self._loaded = tf.saved_model.load(path)
        except (OSError, tf.errors.OpError) as error:
            raise InputError(f"--saved-model={path}: can't be loaded ({error})") from error
        signature = self._loaded.signatures.get(SIGNATURE)
        inputs = signature.structured_input_signature[1] if signature else {}
        if not signature or len(inputs) != 1:
            raise InputError(
                f"--saved-model={path}: expected a signature {SIGNATURE} with one input; write it "
                "with `tpu-training export`"
            )
        self._signature = signature
        self.input = next(_info(name, spec) for name, spec in inputs.items())
        outputs = signature.structured_outputs
        self.outputs = tuple(_info(name, spec) for name, spec in sorted(outputs.items()))

    @property
    def example_shape(self) -> tuple[int | None, ...]:
        """The shape of one example."""
        return self.input.shape[1:]

    def predict(self, features: Array) -> Mapping[str, Array]:
        """Map (examples, …) to each output's (examples, …).

        A model with a fixed batch size gets batches of it, the last one padded; any other gets all
        examples at once.

        Raises:
            ValueError: An example has the wrong shape, or a token is not in the vocabulary.
        """
        expected = self.example_shape
        shape = features.shape[1:]
        fits = len(shape) == len(expected) and all(
            size in (None, given) for given, size in zip(shape, expected, strict=True)
        )
        if not features.ndim or not fits:
            raise ValueError(f"an example has the shape {shape}, the model takes {expected}")
        try:
            parts = [self._run(part, filling) for part, filling in self._batches(features)]
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(describe(error)) from error
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _batches(self, features: Array) -> Iterator[tuple[Array, int]]:
        size = self.input.shape[0]
        if size is None:
            yield features, 0
            return
        for begin in range(0, len(features), size):
            part = features[begin : begin + size]
            filling = size - len(part)
            yield np.concatenate([part, np.repeat(part[-1:], filling, axis=0)]), filling

    def _run(self, features: Array, filling: int) -> dict[str, Array]:
        tensor = tf.constant(features, dtype=self.input.dtype)
        outputs = self._signature(**{self.input.name: tensor})
        count = len(features) - filling
        return {name: _values(output)[:count] for name, output in outputs.items()}


def _newest(saved_model: str) -> tuple[str, str]:
    """Return the path to load and its version, the folder's name as in TensorFlow Serving."""
    base = saved_model.rstrip("/")
    files.check_bucket(saved_model, "--saved-model")
    try:
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"--saved-model={saved_model}: there is no such directory") from error
    if "saved_model.pb" in names:
        name = base.rpartition("/")[2]
        return base, name if name.isdigit() else "1"
    versions = sorted((int(name) for name in names if name.isdigit()), reverse=True)
    if not versions:
        raise InputError(
            f"--saved-model={saved_model}: contains neither a saved_model.pb nor a numbered "
            "version; write one with `tpu-training export`"
        )
    return f"{base}/{versions[0]}", str(versions[0])


def _values(output: tf.Tensor) -> Array:
    values: Array = output.numpy()
    return np.char.decode(values.astype(bytes), "utf-8") if output.dtype == tf.string else values


def _info(name: str, spec: tf.TensorSpec) -> TensorInfo:
    return TensorInfo(name, spec.dtype.name, tuple(spec.shape.as_list()))
