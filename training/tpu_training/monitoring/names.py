"""Names of a model's variables by where they are in it: their own repeat, such as `kernel`."""

from collections.abc import Iterable, Iterator

import tensorflow as tf


def variable_names(model: tf.Module) -> list[str]:
    """The paths of `model.trainable_variables`, such as `conv_1/kernel`, in their order."""
    paths = {id(variable): path for path, variable in _walk(model, "", set())}
    variables = model.trainable_variables
    return [paths.get(id(v), f"{v.name.partition(':')[0]}_{i}") for i, v in enumerate(variables)]


def _walk(value: object, path: str, seen: set[int]) -> Iterator[tuple[str, tf.Variable]]:
    if isinstance(value, tf.Variable):
        yield path.removesuffix("/"), value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    for name, part in _parts(value):
        yield from _walk(part, f"{path}{name}/", seen)


def _parts(value: object) -> Iterable[tuple[str, object]]:
    if isinstance(value, tf.Module):
        return [(name, part) for name, part in vars(value).items() if not name.startswith("_self_")]
    if isinstance(value, (list, tuple)):
        return [(str(position), part) for position, part in enumerate(value)]
    if isinstance(value, dict):
        return [(str(key), part) for key, part in value.items()]
    return ()
