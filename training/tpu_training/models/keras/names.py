"""Name a Keras model's variables by their place in it, the same each time that it is created.

Keras numbers the layers of a process: the second model's `dense` is `dense_1`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf


class Part(tf.Module):  # type: ignore[misc]
    """A layer, or a group of layers, that holds variables by their names."""


def place(root: tf.Module, model: Any, variables: Iterable[tuple[Any, tf.Variable]]) -> None:
    """Make each TensorFlow variable of Keras' `variables` an attribute of the parts of `root`."""
    names = _stable_names(model._flatten_layers())
    for variable, value in variables:
        *parents, last = _path(variable, model.name, names)
        part = root
        for parent in parents:
            part = _child(part, parent)
        setattr(part, _free(part, last), value)


def _path(variable: Any, model: str, names: dict[str, str]) -> Sequence[str]:
    path = variable.path.split("/")
    inner = path[1:] if path[0] == model and len(path) > 1 else path
    return [_attribute(names.get(part, part)) for part in inner]


def _stable_names(layers: Iterator[Any]) -> dict[str, str]:
    """Map each name that Keras gave a layer to one with the layer's number in its own model."""
    given, counts = {}, Counter[str]()
    for layer in layers:
        base = _snake_case(type(layer).__name__)
        if layer.name not in given and re.fullmatch(rf"{base}(_\d+)?", layer.name):
            given[layer.name] = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
    return given


def _snake_case(name: str) -> str:
    """Return the name of a class as Keras writes it in a layer's name."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def _attribute(name: str) -> str:
    name = re.sub(r"\W", "_", name)
    return f"{name}_" if hasattr(Part, name) else name


def _child(part: tf.Module, name: str) -> tf.Module:
    if not isinstance(vars(part).get(name), Part):
        name = _free(part, name)
        setattr(part, name, Part())
    child: tf.Module = vars(part)[name]
    return child


def _free(part: tf.Module, name: str) -> str:
    number, free = 0, name
    while free in vars(part):
        number += 1
        free = f"{name}_{number}"
    return free
