"""Whether a data function gives the same examples again when a job goes on from a checkpoint.

A resumed job reads the epoch from its beginning and leaves out what was seen. So the epoch must
depend on context.seed alone, not on operations with a state or on which thread is first.
"""

import tensorflow as tf

from tpu_training.data.function.call import DataFunction
from tpu_training.data.manifest import TRAIN
from tpu_training.errors import InputError
from tpu_training.errors.catalog import users_line
from tpu_training.loop.graph import operations

_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def trace(function: DataFunction) -> tf.Graph:
    """Return the graph of the training examples. Raises InputError with the user's line."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def rows(seed: tf.Tensor) -> tf.data.Dataset:
        return function.in_graph(TRAIN, seed)

    return rows.get_concrete_function(tf.TensorSpec((), tf.int64)).graph


def python_in(graph: tf.Graph) -> str:
    """Return FILE:LINE of what runs Python for each example in `graph`, or ""."""
    return next((_where(found) for found in operations(graph) if found.type in _PYTHON), "")


def refuse_unrepeatable(graph: tf.Graph, place: str) -> None:
    """Raise InputError with everything in `graph` that another pass would do differently."""
    found = {
        f"{_where(operation) or place}: {reason}": None
        for operation in operations(graph)
        if (reason := _why(operation))
    }
    if found:
        raise InputError(
            f"{'; '.join(found)}; or give --order=fast, with which a resumed job goes on after as "
            "many examples, but with others"
        )


def _why(operation: tf.Operation) -> str:
    attributes = operation.node_def.attr
    if _draws_its_seed(operation):
        return f"{operation.type} has no seed; give it seed=context.seed"
    if operation.op_def.is_stateful and ("seed2" in attributes or "Rng" in operation.type):
        return (
            f"{operation.type} draws other numbers once a job was resumed; use tf.random.stateless_"
            "… or tf.image.stateless_random_… with context.seed"
        )
    if attributes["deterministic"].s == b"false" or attributes["sloppy"].b:
        return "gives examples in the order in which threads are ready; leave out deterministic"
    return ""


def _draws_its_seed(operation: tf.Operation) -> bool:
    """Return whether a data set that draws was given no seed, for which 0 and 0 stand."""
    names = [argument.name for argument in operation.op_def.input_arg]
    inputs = dict(zip(names, operation.inputs, strict=False))
    seeds = [inputs[name] for name in ("seed", "seed2") if name in inputs]
    return len(seeds) == 2 and all(tf.get_static_value(seed) == 0 for seed in seeds)


def _where(operation: tf.Operation) -> str:
    """Return FILE:LINE of the user's code that made `operation`, or ""."""
    return users_line((frame.filename, frame.lineno) for frame in reversed(operation.traceback))
