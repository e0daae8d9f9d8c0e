"""Which Keras a model is of, and what is set in it while a model is created."""

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tpu_training.errors import InputError

_FLOAT32 = "float32"
# The packages that have been called Keras; tf_keras and the keras of TensorFlow up to 2.15 are 2.
_PACKAGES = ("keras", "tf_keras")
_CURE = (
    "a model needs Keras 3: install TensorFlow 2.16 or later, `import keras` in the file, and "
    "unset TF_USE_LEGACY_KERAS"
)


def is_keras_model(model: object, where: str) -> bool:
    """Return whether `model` is a Keras 3 model.

    Raises:
        InputError: It is a model of Keras 2; the message begins with `where`, FILE:LINE.
    """
    keras = _keras_3()
    if keras and isinstance(model, keras.Model):
        return True
    for kind in type(model).__mro__:
        package = kind.__module__.partition(".")[0]
        if kind.__name__ == "Model" and package in _PACKAGES:
            version = getattr(sys.modules.get(package), "__version__", "2")
            raise InputError(f"{where}: the model is of {package} {version}; {_CURE}")
    return False


def is_keras_own(value: object) -> bool:
    """Return whether a function, or the class of an object, comes with Keras."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] == "keras"


@contextmanager
def creation(create_model: Callable[..., Any], seed: int, precision: str) -> Iterator[None]:
    """Let Keras draw first weights from `seed`, and compute in `precision` unless the file sets it.

    Keras takes a seed for each initializer from Python's `random`.
    """
    if _mentions_keras(create_model):
        importlib.import_module("keras")
    keras = _keras_3()
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    policy: Any = keras.mixed_precision.global_policy() if keras else None
    if keras and policy.name == _FLOAT32 != precision:
        keras.mixed_precision.set_global_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        if keras:
            keras.mixed_precision.set_global_policy(policy)


def _keras_3() -> ModuleType | None:
    """Return Keras 3 if it is loaded: nothing here loads it for a model that doesn't use it."""
    keras = sys.modules.get("keras")
    # A user's file or a namespace package may have that name, too.
    return keras if hasattr(keras, "StatelessScope") else None


def _mentions_keras(create_model: Callable[..., Any]) -> bool:
    module = sys.modules.get(getattr(create_model, "__module__", ""))
    try:
        with open(getattr(module, "__file__", None) or "", encoding="utf-8") as file:
            return "keras" in file.read()
    except OSError:
        return False
