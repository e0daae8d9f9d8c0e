"""Choose what of a model is trained, and how fast each part of it learns."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.loop.optimizers.muon import is_embedding
from tpu_training.models.model import (
    check_pattern,
    layer_of,
    matches,
    split_patterns,
    variable_names,
    variable_paths,
)
from tpu_training.models.params import Params


class Choice(NamedTuple):
    """The variables that are trained, each with its factor of the rate; the ids of all frozen.

    `paths` are those of the trained variables, and `head` that of the matrix created last.
    """

    trained: list[tf.Variable]
    rate_factors: list[float]
    frozen: frozenset[int]
    paths: list[str]
    head: str


@contextmanager
def creations() -> Iterator[list[tf.Variable]]:
    """Provide the list of the variables that are created within, in that order."""
    order: list[tf.Variable] = []

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        order.append(next_creator(**options))
        return order[-1]

    with tf.variable_creator_scope(create):
        yield order


def choose_variables(params: Params, model: tf.Module, order: Sequence[tf.Variable]) -> Choice:
    """Return what of `model`, whose variables were created in `order`, `params` lets train.

    Raises:
        InputError: A pattern matches nothing, a factor is no number, or nothing is left to train.
    """
    trainable = list(zip(variable_names(model), model.trainable_variables, strict=True))
    every = list(variable_paths(model)) if isinstance(model, tf.Module) else trainable
    frozen = _frozen(params.freeze, [path for path, _ in every])
    trained = [(path, variable) for path, variable in trainable if path not in frozen]
    if not trained:
        raise InputError(f"--freeze={params.freeze}: freezes all variables; leave some to train")
    factors = _rate_factors(params.rate_factors, [path for path, _ in trained])
    places = {id(variable): place for place, variable in enumerate(order)}
    depths = _depths(trainable, places)
    matrices = [
        (places.get(id(variable), -1), path)
        for path, variable in trainable
        if len(variable.shape) == 2 and not is_embedding(path)
    ]
    return Choice(
        [variable for _, variable in trained],
        [factors[path] * params.layer_decay ** depths[layer_of(path)] for path, _ in trained],
        frozenset(id(variable) for path, variable in every if path in frozen),
        [path for path, _ in trained],
        max(matrices, default=(0, ""))[1],
    )


def _frozen(text: str, paths: Sequence[str]) -> set[str]:
    frozen: set[str] = set()
    for pattern in split_patterns(text):
        meant = pattern.removeprefix("!")
        check_pattern(f"--freeze={text}", meant, paths)
        found = {path for path in paths if matches(path, meant)}
        frozen = frozen - found if pattern.startswith("!") else frozen | found
    return frozen


def _rate_factors(text: str, paths: Sequence[str]) -> dict[str, float]:
    factors = dict.fromkeys(paths, 1.0)
    for part in split_patterns(text):
        pattern, _, written = part.rpartition("=")
        try:
            factor = float(written)
        except ValueError:
            factor = -1.0
        if not (pattern and 0.0 <= factor <= 1e6):
            raise InputError(
                f"--rate_factors={text}: {part!r} is not PATTERN=FACTOR, such as head=10, with a "
                "factor from 0 to 1e6"
            )
        check_pattern(f"--rate_factors={text}", pattern, paths)
        factors.update((path, factor) for path in paths if matches(path, pattern))
    return factors


def _depths(named: Sequence[tuple[str, tf.Variable]], places: Mapping[int, int]) -> dict[str, int]:
    """Return how many layers lie above each layer, by the order in which they were created."""
    first: dict[str, int] = {}
    for path, variable in named:
        layer, place = layer_of(path), places.get(id(variable), len(places))
        first[layer] = min(first.get(layer, place), place)
    layers = sorted(first, key=first.__getitem__)
    return {layer: len(layers) - 1 - place for place, layer in enumerate(layers)}
