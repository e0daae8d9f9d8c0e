"""Let Keras load its own files into a Keras model, layer by layer."""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.checkpoints.initial.hostile import check_hdf5, unpack_keras
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.models.keras import KerasModule
from tpu_training.models.model import variable_paths

_ENDINGS = (".weights.h5", ".keras", ".h5", ".hdf5")


def is_for_keras(path: str, model: tf.Module) -> bool:
    """Return whether `path` is a file of Keras and `model` a model of Keras."""
    return isinstance(model, KerasModule) and path.endswith(_ENDINGS)


def load_by_keras(cluster: Cluster, path: str, model: KerasModule) -> set[str]:
    """Load `path` and return the names of the variables that got a value from it.

    Raises:
        InputError: It is missing, or Keras can't read it.
    """
    variables = {name: each for name, each in variable_paths(model) if each.dtype.is_floating}
    first = {name: variable.numpy() for name, variable in variables.items()}
    # Keras does not say what it left alone: that still is no number afterwards.
    for variable in variables.values():
        variable.assign(tf.fill(variable.shape, tf.constant(np.nan, variable.dtype)))
    loaded: set[str] = set()
    try:
        with cluster.strategy.scope():
            _load(path, model.keras())
        loaded = {name for name, each in variables.items() if not np.isnan(each.numpy()).any()}
    finally:
        for name in variables.keys() - loaded:
            variables[name].assign(first[name])
    return loaded


def _load(path: str, model: Any) -> None:
    ending = next(ending for ending in _ENDINGS if path.endswith(ending))
    # Of files in the old form Keras takes layers by name, else it wants all of them.
    options = {"by_name": True} if ending in (".h5", ".hdf5") else {}
    if files.size(path) is None:
        raise InputError(f"--init_from={path}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="weights-") as here, warnings.catch_warnings():
        local = Path(here, f"given{ending}")
        content = files.read_bytes(path)
        local.write_bytes(content)
        try:
            check_hdf5(unpack_keras(content) if ending == ".keras" else content)
            # What it warns of is told with the names of this model's variables.
            warnings.simplefilter("ignore")
            model.load_weights(str(local), skip_mismatch=True, **options)
        except Exception as error:  # Keras has all kinds of errors for a file that it can't take.
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"--init_from={path}: Keras can't load it ({type(error).__name__}: {reason})"
            ) from error
