"""Name a model's variables by their paths, and choose among them by patterns."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import tensorflow as tf

from tpu_training.errors import InputError

# Names that a message lists; more would hide the rest of it.
_MOST_SHOWN = 12


def variable_names(model: tf.Module) -> list[str]:
    """Return the paths of `model.trainable_variables`, such as `conv_1/kernel`, in their order."""
    if not isinstance(model, tf.Module):  # Such as a model of Keras 3.
        names = (variable.name.partition(":")[0] for variable in model.trainable_variables)
        return [f"{name}_{number}" for number, name in enumerate(names)]
    trained = {id(variable) for variable in model.trainable_variables}
    return [path for path, variable in variable_paths(model) if id(variable) in trained]


def variable_paths(model: tf.Module) -> Iterator[tuple[str, tf.Variable]]:
    """Yield all variables of `model` with their paths; their own names repeat, as `kernel`."""
    found = model._flatten(
        predicate=lambda value: isinstance(value, tf.Variable),
        with_path=True,
        expand_composites=True,
    )
    for path, variable in found:
        yield "/".join(map(str, path)), variable


def layer_of(path: str) -> str:
    """Return the part of a model that the variable at `path` is in: `blocks/3`, or `head`."""
    parts = path.split("/")
    numbered = (place + 1 for place, part in enumerate(parts) if part.isdigit())
    return "/".join(parts[: next(numbered, 1)])


def split_patterns(text: str) -> list[str]:
    """Return the patterns in a list with commas."""
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def matches(path: str, pattern: str) -> bool:
    """Return whether `pattern` means `path`, or a part of the model that `path` is in."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def check_pattern(flag: str, pattern: str, paths: Sequence[str]) -> None:
    """Raise InputError where `pattern` matches none of `paths`."""
    if not any(matches(path, pattern) for path in paths):
        raise InputError(
            f"{flag}: {pattern!r} matches none of the model's variables, such as "
            f"{some(paths)}; its parts are {some(list(dict.fromkeys(map(layer_of, paths))))}"
        )


def some(names: Sequence[str]) -> str:
    """Return the first of `names`, and how many more there are."""
    rest = len(names) - _MOST_SHOWN
    return ", ".join(names[:_MOST_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
