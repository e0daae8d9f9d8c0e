"""Which Keras a model is of, and what is set in it while a model is created."""

import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

_PACKAGES = ("keras", "tf_keras")
_FLOAT32 = "float32"


def package_of(value: object, kind: str = "Model") -> ModuleType | None:
    """Return the Keras whose class `kind` the object `value` is of; None for anything else."""
    for package in _loaded():
        if isinstance(value, getattr(package, kind)):
            return package
    return None


def is_keras_3(package: ModuleType) -> bool:
    """Return whether variables are Keras' own, and `tf.Module` is no base of a layer."""
    return hasattr(package, "StatelessScope")


def tensorflows(variable: Any) -> Any:
    """Return TensorFlow's variable of Keras' `variable`, which in Keras 2 is one."""
    return variable.value if hasattr(variable, "_value") else variable


def is_keras_own(value: object) -> bool:
    """Return whether a function or the class of an object comes with Keras."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] in _PACKAGES


@contextmanager
def creation(create_model: Callable[..., Any], seed: int, precision: str) -> Iterator[None]:
    """Let Keras draw first weights from `seed`, and compute in `precision` unless the file sets it.

    Keras takes a seed for each initializer from Python's `random`.
    """
    if _mentions_keras(create_model) and not _loaded():
        importlib.import_module("tensorflow").keras.Model  # noqa: B018 (it is loaded by this)
    states, policies = (random.getstate(), np.random.get_state()), _policies()
    random.seed(seed)
    np.random.seed(seed)
    for package, policy in policies:
        if policy.name == _FLOAT32 and precision != _FLOAT32:
            package.mixed_precision.set_global_policy(f"mixed_{precision}")
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for package, policy in policies:
            package.mixed_precision.set_global_policy(policy)


def _loaded() -> list[ModuleType]:
    found = [sys.modules[name] for name in _PACKAGES if name in sys.modules]
    # A file may call itself or a namespace so.
    return [_public(package) for package in found if hasattr(package, "__version__")]


def _public(package: ModuleType) -> ModuleType:
    """Return what users see of `package`: up to TensorFlow 2.15 that is `tf.keras`."""
    if package.__name__ == "keras" and not is_keras_3(package):
        public: ModuleType = importlib.import_module("keras.api._v2.keras")
        return public
    return package


def _policies() -> list[tuple[ModuleType, Any]]:
    return [(package, package.mixed_precision.global_policy()) for package in _loaded()]


def _mentions_keras(create_model: Callable[..., Any]) -> bool:
    module = sys.modules.get(getattr(create_model, "__module__", ""))
    try:
        with open(getattr(module, "__file__", None) or "", encoding="utf-8") as file:
            return "keras" in file.read()
    except OSError:
        return False
