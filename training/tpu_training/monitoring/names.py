"""Name a model's variables by their paths; their own names repeat, such as `kernel`."""

import tensorflow as tf


def variable_names(model: tf.Module) -> list[str]:
    """Return the paths of `model.trainable_variables`, such as `conv_1/kernel`, in their order."""
    if not isinstance(model, tf.Module):  # Such as a model of Keras 3.
        names = (variable.name.partition(":")[0] for variable in model.trainable_variables)
        return [f"{name}_{number}" for number, name in enumerate(names)]
    found = model._flatten(
        predicate=lambda value: isinstance(value, tf.Variable) and value.trainable,
        with_path=True,
        expand_composites=True,
    )
    return ["/".join(map(str, path)) for path, _ in found]
