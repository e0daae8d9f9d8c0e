"""Does a TFLite model run on the Edge TPU? Each operation against the list of what it can do.

The list is edge_tpu_ops.json. Google's edgetpu_compiler has the last word: it maps the operations
up to the first one that is not supported, and leaves the rest to the CPU.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tensorflow.lite.python import schema_py_generated as schema

_FILE = Path(__file__).parent / "edge_tpu_ops.json"
_INTEGERS = {
    schema.TensorType.INT8: "int8",
    schema.TensorType.UINT8: "uint8",
    schema.TensorType.INT32: "int32",
}
_LARGEST_SOFTMAX = 16_000


@dataclass(frozen=True)
class Operation:
    """One operation of the model; `problem` is empty where the Edge TPU runs it."""

    name: str
    problem: str


def check_operations(model: bytes) -> list[Operation]:
    """Return every operation of the model's only graph, in its order."""
    content = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(model, 0))
    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if not k.startswith("_")}
    graph = content.subgraphs[0]
    operations = []
    for operator in graph.operators:
        code = content.operatorCodes[operator.opcodeIndex]
        # Old files have the code in the first field, which is one byte.
        name = names[max(code.builtinCode, code.deprecatedBuiltinCode)]
        operations.append(Operation(name, _problem(name, operator, graph.tensors)))
    return operations


def _problem(name: str, operator: Any, tensors: list[Any]) -> str:
    entry = _supported().get(name)
    if entry is None:
        return "not in the Edge TPU's list"
    used = [tensors[i] for i in (*operator.inputs, *operator.outputs) if i >= 0]
    if floating := next((t for t in used if t.type not in _INTEGERS), None):
        return f"the tensor {floating.name.decode()} is not an integer"
    if any(size < 0 for t in used if t.shapeSignature is not None for size in t.shapeSignature):
        return "a shape is not static"
    for check in entry.get("checks", ()):
        if not _CHECKS[check](operator, tensors):
            return str(entry["limit"])
    return ""


@cache
def _supported() -> dict[str, dict[str, Any]]:
    operations: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))[
        "operations"
    ]
    return operations


def _no_activation(operator: Any, _tensors: list[Any]) -> bool:
    none = schema.ActivationFunctionType.NONE
    return bool(operator.builtinOptions.fusedActivationFunction == none)


def _square_dilation(operator: Any, _tensors: list[Any]) -> bool:
    options = operator.builtinOptions
    return bool(options.dilationWFactor == options.dilationHFactor)


def _default_weights(operator: Any, _tensors: list[Any]) -> bool:
    default = schema.FullyConnectedOptionsWeightsFormat.DEFAULT
    return bool(operator.builtinOptions.weightsFormat == default)


def _at_most_16000(operator: Any, tensors: list[Any]) -> bool:
    return math.prod(map(int, tensors[operator.inputs[0]].shape)) <= _LARGEST_SOFTMAX


_CHECKS: dict[str, Callable[[Any, list[Any]], bool]] = {
    "no_activation": _no_activation,
    "square_dilation": _square_dilation,
    "default_weights": _default_weights,
    "at_most_16000": _at_most_16000,
}
