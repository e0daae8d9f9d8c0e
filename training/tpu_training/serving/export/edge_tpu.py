"""What is done for the Edge TPU, as far as it can be done without its compiler.

Google's edgetpu_compiler alone says which operations run there. It is a program for Debian that no
package index has.
"""

import copy
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

_ACTIVATIONS = {
    schema.ActivationFunctionType.RELU: schema.BuiltinOperator.RELU,
    schema.ActivationFunctionType.RELU6: schema.BuiltinOperator.RELU6,
    schema.ActivationFunctionType.RELU_N1_TO_1: schema.BuiltinOperator.RELU_N1_TO_1,
}
# As Google's table of operations says, of which this is a copy:
# https://developer.axis.com/computer-vision/on-device/system-on-chip/artpec-7/supported-ops/
_WITHOUT = (
    schema.BuiltinOperator.AVERAGE_POOL_2D,
    schema.BuiltinOperator.CONCATENATION,
    schema.BuiltinOperator.MAX_POOL_2D,
)


def unsuitable_tensors(model: bytes) -> list[str]:
    """Name the tensors of the TFLite `model` that are not what the Edge TPU takes.

    It takes integers of static shapes: https://coral.ai/docs/edgetpu/models-intro/.
    """
    problems = []
    for tensor in tf.lite.Interpreter(model_content=model).get_tensor_details():
        if not np.issubdtype(tensor["dtype"], np.integer):
            problems.append(f"the tensor {tensor['name']} is not an integer")
        elif (tensor["shape_signature"] < 0).any():
            problems.append(f"the shape of the tensor {tensor['name']} is not static")
    return problems


def unfuse_activations(model: bytes) -> bytes:
    """Return the TFLite `model` with the activations of poolings as operations of their own.

    The converter fuses a ReLU into the pooling before it, and the Edge TPU runs poolings only
    without one. Both have the same quantisation, so that the numbers stay the same.
    """
    content = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    graph = content.subgraphs[0]
    operators = []
    for operator in graph.operators:
        operators.append(operator)
        if content.operatorCodes[operator.opcodeIndex].builtinCode not in _WITHOUT:
            continue
        kind = _ACTIVATIONS.get(operator.builtinOptions.fusedActivationFunction)
        if kind is not None:
            operators.append(_activation_after(operator, kind, content))
    graph.operators = operators
    return bytes(flatbuffer_utils.convert_object_to_bytearray(content))


def _activation_after(operator: Any, kind: int, content: Any) -> Any:
    """Make `operator` write to a new tensor, and return what reads it and writes the old one."""
    tensors = content.subgraphs[0].tensors
    (output,) = operator.outputs
    between = copy.deepcopy(tensors[output])
    between.name = b"%s/before_activation" % bytes(between.name)
    tensors.append(between)
    operator.outputs = [len(tensors) - 1]
    operator.builtinOptions.fusedActivationFunction = schema.ActivationFunctionType.NONE
    activation = schema.OperatorT()
    activation.opcodeIndex = _code(kind, content)
    activation.inputs, activation.outputs = list(operator.outputs), [output]
    return activation


def _code(kind: int, content: Any) -> int:
    """Return the index of operator code `kind`, added if there is none yet."""
    codes = content.operatorCodes
    for index, code in enumerate(codes):
        if code.builtinCode == kind:
            return index
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = kind
    code.version = 1
    codes.append(code)
    return len(codes) - 1
