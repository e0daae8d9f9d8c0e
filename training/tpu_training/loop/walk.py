"""Walk through a traced function: its graph, and those of the functions that it calls."""

from collections.abc import Iterator

import tensorflow as tf


def operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield all operations of `graph` and of its functions, loops' bodies and branches included."""
    yield from _operations(graph, set())


def _operations(graph: tf.Graph, seen: set[str]) -> Iterator[tf.Operation]:
    for operation in graph.get_operations():
        yield operation
        for name in called(operation):
            if name not in seen:
                seen.add(name)
                # Public APIs have the functions' definitions only, without the user's lines.
                if function := graph._get_function(name):
                    yield from _operations(function.graph, seen)


def called(operation: tf.Operation) -> Iterator[str]:
    """Yield the names of the functions that `operation` calls."""
    for attribute in operation.node_def.attr.values():
        yield from (name for name in (attribute.func.name,) if name)
        yield from (function.name for function in attribute.list.func)
