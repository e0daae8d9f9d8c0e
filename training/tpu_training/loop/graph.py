"""Build graphs without AutoGraph, which would add a second to a job's start.

AutoGraph compiles Python's control flow over tensors, function by function. This package uses none;
a user's own model may.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from tpu_training.cluster.cluster import Cluster
from tpu_training.models.params import Params

Values = TypeVar("Values")
# operation, shapes of its inputs, shape of its output -> multiplications
_Count = Callable[[tf.Operation, Sequence[tuple[int, ...]], tuple[int, ...]], float]


def repeat(
    count: int | tf.Tensor, start: Values, step: Callable[[tf.Tensor, Values], Values]
) -> Values:
    """Apply `step(number, values)` to `start` `count` times, in one loop on the device.

    One call for many steps: a TPU that is reached over the network would wait for this machine
    before each of them.
    """

    def body(number: tf.Tensor, values: Values) -> tuple[tf.Tensor, Values]:
        return number + 1, step(number, values)

    first = (tf.constant(0), start)
    result: Values = tf.while_loop(lambda number, _: number < count, body, first)[1]
    return result


def with_autograph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` with AutoGraph enabled in it, whatever calls it.

    The package's own functions are traced without, and AutoGraph would stay off in what they call.
    """
    convert: Callable[..., Any] = tf.autograph.to_graph(_call)

    def converted(*arguments: Any, **options: Any) -> Any:
        return convert(function, arguments, options)

    return converted


def _call(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    return function(*arguments, **options)


def operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Yield all operations of `graph` and of its functions, loops' bodies and branches included."""
    yield from _operations(graph, set())


def _operations(graph: tf.Graph, seen: set[str]) -> Iterator[tf.Operation]:
    for operation in graph.get_operations():
        yield operation
        for name in called(operation):
            if name not in seen:
                seen.add(name)
                if inner := _graph_of(graph, name):
                    yield from _operations(inner, seen)


def _graph_of(graph: tf.Graph, name: str) -> tf.Graph | None:
    """Return the graph of a function; of an imported graph's, Python has the definitions alone."""
    # Public APIs have the functions' definitions only, without the user's lines.
    if hasattr(function := graph._get_function(name), "graph"):
        return function.graph
    try:
        return function_def_to_graph(context.context().get_function_def(name))
    except tf.errors.NotFoundError:
        return None


def called(operation: tf.Operation) -> Iterator[str]:
    """Yield the names of the functions that `operation` calls."""
    for attribute in operation.node_def.attr.values():
        yield from (name for name in (attribute.func.name,) if name)
        yield from (function.name for function in attribute.list.func)


def count_flops(cluster: Cluster, loop: Any, params: Params) -> float:
    """Return the operations of a step of the compiled `loop`, a tf.function, over all replicas.

    Counts matrix products and convolutions, a multiplication and an addition as two. A window's
    positions in the padding count, which XLA leaves out. A loop of a constant length, as
    of tf.map_fn, counts as often as it repeats, any other once; recomputed results (--remat) count
    each time.
    """
    with cluster.on_loop_device():
        graph = loop.get_concrete_function(tf.TensorSpec((), tf.int32)).graph
    # A TPU's program, and JAX's, is traced once for all; others are traced once for each replica.
    traced = cluster.here.replicas if not cluster.has_tpu else 1
    copies = cluster.replicas // traced
    return copies * params.gradient_accumulation * flops_of(graph)


def flops_of(graph: tf.Graph) -> float:
    """Return the operations of `graph` and of what it calls; see count_flops for loops."""
    known: dict[str, float] = {}

    def total(graph: tf.Graph) -> float:
        return sum(
            _own(op) + _times(op) * sum(inner(graph, name) for name in called(op))
            for op in _live(graph)
        )

    def inner(graph: tf.Graph, name: str) -> float:
        if name not in known:
            function = graph._get_function(name)
            known[name] = total(function.graph) if function else 0.0
        return known[name]

    return total(graph)


def _live(graph: tf.Graph) -> list[tf.Operation]:
    """Return the operations that something needs: gradients of images, say, are traced in vain."""
    seen: dict[int, tf.Operation] = {}
    left = [*(output.op for output in graph.outputs), *graph.control_outputs]
    left += [op for op in graph.get_operations() if op.op_def.is_stateful]
    while left:
        op = left.pop()
        if id(op) not in seen:
            seen[id(op)] = op
            left += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return list(seen.values())


def _times(operation: tf.Operation) -> int:
    """Return how often a loop repeats at most, if it is a constant; 1 for all others."""
    loop = operation.type in ("While", "StatelessWhile")
    return max(1, tf.get_static_value(operation.inputs[1]) or 1) if loop else 1


def _own(operation: tf.Operation) -> float:
    count = _COUNTS.get(operation.type)
    if count is None:
        return 0.0
    shapes = [tensor.shape for tensor in (*operation.inputs, *operation.outputs)]
    # A dynamic shape is known to the run alone; TPUs take none.
    if not all(shape.is_fully_defined() for shape in shapes):
        return 0.0
    inputs = [tuple(tensor.shape) for tensor in operation.inputs]
    return 2.0 * count(operation, inputs, tuple(operation.outputs[0].shape))


def _product(transposed: str) -> _Count:
    """Return the count of a matrix product; `transposed` names the attribute of its left side."""
    return lambda op, inputs, output: (
        math.prod(output) * inputs[0][-2 if op.get_attr(transposed) else -1]
    )


def _einsum(op: tf.Operation, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]) -> float:
    # Each combination of all letters' values is one multiplication.
    letters = op.get_attr("equation").decode().partition("->")[0].split(",")
    sizes = {
        letter: size
        for term, shape in zip(letters, inputs, strict=True)
        for letter, size in zip(term, shape, strict=False)
    }
    return math.prod(sizes.values())


# A kernel is (height, width, inputs, outputs); each position of the result takes one output's part.
_COUNTS: dict[str, _Count] = {
    "MatMul": _product("transpose_a"),
    "BatchMatMulV2": _product("adj_x"),
    "BatchMatMulV3": _product("adj_x"),
    "Einsum": _einsum,
    "Conv2D": lambda _, inputs, output: math.prod(output) * math.prod(inputs[1][:3]),
    "Conv2DBackpropInput": lambda _, i, output: math.prod(i[2]) * math.prod(i[1][:3]),
    "Conv2DBackpropFilter": lambda _, i, output: math.prod(i[2]) * math.prod(output[:3]),
    "DepthwiseConv2dNative": lambda _, i, output: math.prod(output) * math.prod(i[1][:2]),
    "DepthwiseConv2dNativeBackpropInput": lambda _, i, output: (
        math.prod(i[2]) * math.prod(i[1][:2])
    ),
    "DepthwiseConv2dNativeBackpropFilter": lambda _, i, output: (
        math.prod(i[2]) * math.prod(output[:2])
    ),
}
