"""Give a model the weights that --init_from names, and say what did not match."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tpu_training.checkpoints.initial.by_keras import is_for_keras, load_by_keras
from tpu_training.checkpoints.initial.name_map import map_names
from tpu_training.checkpoints.initial.sources import Array, Stored, read_weights
from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import InputError
from tpu_training.models.model import some, variable_names, variable_paths
from tpu_training.models.params import Params

# PyTorch has the outputs of a kernel first: (out, in) and (out, in, height, width).
_FROM_TORCH = {2: (1, 0), 4: (2, 3, 1, 0)}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """The names that matched, and those that did not, on both sides.

    `fresh` has the model's variables with the reason why they keep their first values; `unused` the
    file's weights that the model has no variable for.
    """

    matched: list[str]
    fresh: dict[str, str]
    unused: list[str]


def load_initial_weights(cluster: Cluster, params: Params, model: tf.Module) -> Loaded | None:
    """Assign the weights in `params.init_from` to `model`; None where it is empty.

    What has no weight of its name and shape there keeps its first value, and is logged.

    Raises:
        InputError: Nothing can be read there, or nothing of it fits.
    """
    if not params.init_from:
        return None
    if is_for_keras(params.init_from, model) and not params.init_map:
        return _loaded_by_keras(cluster, params.init_from, model)
    stored = read_weights(params.init_from)
    ours = map_names(params.init_map, stored)
    weights = {name: stored[theirs] for theirs, name in ours.items()}
    variables = dict(_named(model))
    misfits = {name: _misfit(name, variable, weights) for name, variable in variables.items()}
    fresh = {name: reason for name, reason in misfits.items() if reason}
    matched = [name for name in variables if name not in fresh]
    if not matched:
        raise InputError(
            f"--init_from={params.init_from}: none of its weights fits: it has "
            f"{some(sorted(weights))}; the model has {some(list(variables))}; map the names with "
            "--init_map=THEIRS=OURS,…"
        )
    with cluster.on_loop_device():
        for name in matched:
            variables[name].assign(_value(name, variables[name], weights[name]))
    unused = sorted(theirs for theirs in stored if ours.get(theirs) not in variables)
    loaded = Loaded(matched, fresh, unused)
    _log(params.init_from, loaded)
    return loaded


def _loaded_by_keras(cluster: Cluster, path: str, model: tf.Module) -> Loaded:
    names = [name for name, _ in variable_paths(model)]
    found = load_by_keras(cluster, path, model)
    if not found:
        raise InputError(
            f"--init_from={path}: Keras finds no layer of this model in it; its variables are "
            f"{some(names)}"
        )
    reason = "not there, or of another shape"
    fresh = {name: reason for name in names if name not in found}
    loaded = Loaded([name for name in names if name in found], fresh, [])
    _log(path, loaded)
    return loaded


def _log(path: str, loaded: Loaded) -> None:
    count = len(loaded.matched) + len(loaded.fresh)
    logger.info("init: %d of %d variables from %s", len(loaded.matched), count, path)
    if loaded.fresh:
        reasons = [f"{name} ({reason})" for name, reason in loaded.fresh.items()]
        logger.warning("init: left fresh: %s", some(reasons))
    if loaded.unused:
        logger.info("init: not used of the file: %s", some(loaded.unused))


def _named(model: tf.Module) -> list[tuple[str, tf.Variable]]:
    if isinstance(model, tf.Module):
        return list(variable_paths(model))
    return list(zip(variable_names(model), model.trainable_variables, strict=True))


def _misfit(name: str, variable: tf.Variable, weights: Mapping[str, Stored]) -> str:
    """Return why the variable `name` can't have a weight of the file; "" where it can."""
    if name not in weights:
        return "not there"
    there, here = _shape(name, weights[name]), tuple(variable.shape)
    return "" if there == here else f"here {here}, there {there}"


def _shape(name: str, stored: Stored) -> tuple[int, ...]:
    order = _order(name, stored)
    return tuple(stored.shape[axis] for axis in order) if order else tuple(stored.shape)


def _value(name: str, variable: tf.Variable, stored: Stored) -> Array:
    value, order = stored.read(), _order(name, stored)
    value = np.transpose(value, order) if order else value
    return value.astype(variable.dtype.as_numpy_dtype)


def _order(name: str, stored: Stored) -> tuple[int, ...] | None:
    """Return the order of axes that makes a PyTorch kernel one of TensorFlow."""
    return _FROM_TORCH.get(len(stored.shape)) if stored.torch and name.endswith("kernel") else None
