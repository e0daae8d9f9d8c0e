"""Read weights by name from a checkpoint, a Keras file or SafeTensors."""

import io
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.checkpoints.averages import averaged_keys
from tpu_training.checkpoints.initial.hostile import check_hdf5, unpack_keras
from tpu_training.checkpoints.reader import newest_whole
from tpu_training.data import files
from tpu_training.errors import InputError, require

Array = npt.NDArray[Any]

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# What checkpoints hold beside weights: an optimizer's moments, and TensorFlow's own notes.
_NO_WEIGHTS = ("optimizer", "_optimizer", "record/", "save_counter", "_CHECKPOINTABLE")
_OURS = "model/"


class Stored(NamedTuple):
    """A weight in a file.

    `torch` says that a kernel has its outputs first, as PyTorch stores it.
    """

    shape: tuple[int, ...]
    read: Callable[[], Array]
    torch: bool = False


def read_weights(path: str) -> Mapping[str, Stored]:
    """Return what is stored at `path` by name, without an optimizer's moments.

    Raises:
        InputError: There is nothing of a form that can be read.
    """
    endings = {
        ".safetensors": _safetensors,
        ".h5": _keras_weights,
        ".hdf5": _keras_weights,
        ".keras": _keras_model,
    }
    for ending, read in endings.items():
        if path.endswith(ending):
            return _read_file(path, read)
    prefix = _checkpoint_in(path.rstrip("/"))
    if prefix is None:
        raise InputError(
            f"--init_from={path}: is no checkpoint; expected a model directory of this trainer, a "
            "TensorFlow checkpoint (PREFIX of PREFIX.index, or its folder), a SavedModel, or a "
            "file .weights.h5, .h5, .keras or .safetensors"
        )
    return _checkpoint(prefix)


def _read_file(path: str, read: Callable[[bytes], dict[str, Stored]]) -> dict[str, Stored]:
    if files.size(path) is None:
        raise InputError(f"--init_from={path}: there is no such file")
    try:
        return read(files.read_bytes(path))
    except InputError:
        raise
    except Exception as error:  # Each library has its own errors for a broken file.
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"--init_from={path}: can't be read ({type(error).__name__}: {reason})"
        ) from error


def _safetensors(content: bytes) -> dict[str, Stored]:
    library = require("safetensors", "safetensors", "safetensors", "--init_from=….safetensors")
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        file.write(content)
        file.flush()
        with library.safe_open(file.name, "np") as opened:
            torch = (opened.metadata() or {}).get("format") == "pt"
            values = {name: opened.get_tensor(name) for name in list(opened.keys())}
    return {name.replace(".", "/"): _in_memory(value, torch) for name, value in values.items()}


def _keras_model(content: bytes) -> dict[str, Stored]:
    return _keras_weights(unpack_keras(content))


def _keras_weights(content: bytes) -> dict[str, Stored]:
    library = require("h5py", "h5py", "cpu", "--init_from=….h5")
    found: dict[str, Stored] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, library.Dataset) and not name.startswith(_NO_WEIGHTS):
            found[name.partition(":")[0]] = _in_memory(np.asarray(node))

    with library.File(io.BytesIO(check_hdf5(content)), "r") as file:
        file.visititems(visit)
    return found


def _checkpoint_in(path: str) -> str | None:
    """Return the prefix of the checkpoint that `path` means."""
    if files.size(f"{path}.index") is not None:
        return path
    if files.size(f"{path}/variables/variables.index") is not None:
        return f"{path}/variables/variables"
    for folder in (f"{path}/checkpoints", path):
        if tf.io.gfile.isdir(folder) and (whole := newest_whole(folder)):
            return whole
    newest: str | None = tf.train.latest_checkpoint(path)
    return newest


def _checkpoint(prefix: str) -> dict[str, Stored]:
    reader = tf.train.load_checkpoint(prefix)
    shapes: Mapping[str, list[int]] = reader.get_variable_to_shape_map()
    found = {
        key.removesuffix(_VALUE): Stored(tuple(shape), partial(reader.get_tensor, key))
        for key, shape in shapes.items()
        if not key.startswith(_NO_WEIGHTS) and ".OPTIMIZER_SLOT" not in key
    }
    ours = {key.removeprefix(_OURS): found[key] for key in found if key.startswith(_OURS)}
    for name, key in averaged_keys(shapes).items():
        ours[name] = found[key.removesuffix(_VALUE)]
    return ours or found


def _in_memory(value: Array, torch: bool = False) -> Stored:
    return Stored(value.shape, lambda: value, torch)
