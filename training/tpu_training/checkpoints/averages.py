"""The averaged weights in a checkpoint, which what is made of a training uses."""

import re
from collections.abc import Iterable

import tensorflow as tf

from tpu_training.models.model import variable_paths

# The path of loop/averaging.py's variables in a tf.train.Checkpoint.
_PREFIX, _SUFFIX = "average/shadows/", "/.ATTRIBUTES/VARIABLE_VALUE"
# How TensorFlow escapes names: tensorflow/python/checkpoint/trackable_view.py.
_ESCAPED = re.compile(r"\.(.)")


def averaged_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the keys of averaged weights by the path of the variable that each follows."""
    return {
        _ESCAPED.sub(_unescape, key[len(_PREFIX) : -len(_SUFFIX)]): key
        for key in keys
        if key.startswith(_PREFIX) and key.endswith(_SUFFIX)
    }


def has_averages(path: str) -> bool:
    """Return whether the checkpoint at `path` has averaged weights."""
    return bool(averaged_keys(tf.train.load_checkpoint(path).get_variable_to_shape_map()))


def restore_averages(model: tf.Module, path: str) -> bool:
    """Give `model` the averaged weights in the checkpoint at `path`; return whether it has any."""
    reader = tf.train.load_checkpoint(path)
    averaged = averaged_keys(reader.get_variable_to_shape_map())
    if averaged:
        for name, variable in variable_paths(model):
            if name in averaged:
                variable.assign(reader.get_tensor(averaged[name]))
    return bool(averaged)


def _unescape(found: "re.Match[str]") -> str:
    return "/" if found[1] == "S" else found[1]
