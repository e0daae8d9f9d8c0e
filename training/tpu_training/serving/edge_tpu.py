"""Full-integer int8 TFLite for the Edge TPU, and the accuracy that it loses.

Google's edgetpu_compiler alone says which operations run there. It is a program for Debian that no
package index has.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.errors.silence import native_output_hidden
from tpu_training.serving.model import LabelledBatch, RestoredModel


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of a model before and after its conversion to int8, on the same examples."""

    examples: int
    original: float
    converted: float

    @property
    def lost_points(self) -> float:
        """The loss in percentage points."""
        return 100.0 * (self.original - self.converted)

    def __str__(self) -> str:
        """Say it in a sentence."""
        return (
            f"int8 loses {self.lost_points:.2f} points of accuracy on {self.examples} test "
            f"examples (from {self.original:.4f} to {self.converted:.4f})"
        )


@dataclass(frozen=True)
class TfliteModel:
    """A written model, its accuracy next to the float model's, and what the Edge TPU can't take."""

    path: str
    bytes: int
    problems: tuple[str, ...]
    accuracy: Accuracy


def export_tflite(
    model: RestoredModel,
    output: str,
    representative: list[LabelledBatch],
    test: list[LabelledBatch],
) -> TfliteModel:
    """Write `output`/model_int8.tflite: one image of unsigned bytes in, probabilities as bytes out.

    Calibrates all tensors on the `representative` examples and measures the accuracy on `test`.
    """
    content = _convert(model, representative)
    path = f"{output.rstrip('/')}/model_int8.tflite"
    files.write_bytes(path, content)
    return TfliteModel(
        path=path,
        bytes=len(content),
        problems=tuple(unsuitable_tensors(content)),
        accuracy=_compare(model, content, test),
    )


def _compare(model: RestoredModel, content: bytes, test: list[LabelledBatch]) -> Accuracy:
    original = np.concatenate([_classes(model, batch) == batch.labels for batch in test])
    converted = np.array(list(_recognised(content, test)))
    return Accuracy(len(original), float(original.mean()), float(converted.mean()))


def _convert(model: RestoredModel, representative: list[LabelledBatch]) -> bytes:
    """Convert for one image at a time with static shapes, as the Edge TPU requires.

    The converter sees a float32 input with the bytes' values, so that the normalisation becomes
    integer arithmetic. The finished model's input is unsigned bytes again.
    """

    def infer(images: tf.Tensor) -> tf.Tensor:
        return model.predict(images)["probabilities"]

    function = tf.function(infer, input_signature=[model.input_spec(1, "float32")])
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], model.module
    )
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: _one_by_one(representative)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    converter.inference_output_type = tf.uint8
    try:
        with native_output_hidden():
            content: bytes = converter.convert()
    except Exception as error:  # The converter has no type of its own.
        raise InputError(
            f"this model can't be made int8: {str(error).partition(chr(10))[0]}"
        ) from error
    return unfuse_activations(content)


def _one_by_one(batches: list[LabelledBatch]) -> Iterator[list[npt.NDArray[np.float32]]]:
    for batch in batches:
        for image in batch.features:
            yield [image[np.newaxis].astype(np.float32)]


def _classes(model: RestoredModel, batch: LabelledBatch) -> npt.NDArray[np.int32]:
    classes: npt.NDArray[np.int32] = model.predict(tf.constant(batch.features))["classes"].numpy()
    return classes


def _recognised(content: bytes, batches: list[LabelledBatch]) -> Iterator[bool]:
    """Yield for each example whether the TFLite model `content` finds its class."""
    interpreter = tf.lite.Interpreter(model_content=content)
    with native_output_hidden():
        interpreter.allocate_tensors()
    source, target = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero = source["quantization"]
    for batch in batches:
        for image, label in zip(batch.features, batch.labels, strict=True):
            steps = np.rint(image / scale + zero).clip(0, 255).astype(np.uint8)
            interpreter.set_tensor(source["index"], steps[np.newaxis])
            interpreter.invoke()
            yield bool(interpreter.get_tensor(target["index"])[0].argmax() == label)


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
