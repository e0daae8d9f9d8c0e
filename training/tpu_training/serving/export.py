"""`tpu-training export`: a SavedModel, or int8 TFLite for the Edge TPU."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.lite.tools import flatbuffer_utils

import tpu_training.serving.model as models
from tpu_training.cluster.hosts import refuse_on_others
from tpu_training.data import data_set, files
from tpu_training.errors import DataError, InputError, TrainingError
from tpu_training.models.registry import ModelDefinition
from tpu_training.monitoring.terminal import native_output_hidden
from tpu_training.serving.model import SIGNATURE, Array, LabelledBatch, RestoredModel

# Google's guide to post-training quantization asks for 100 to 500 representative examples.
_REPRESENTATIVE = 200
_TEST_BATCH = 100
# The largest loss of accuracy to int8, in percentage points.
_MOST_LOST_POINTS = 1.0

logger = logging.getLogger(__name__)


def run_export(
    model_dir: str,
    output: str,
    kind: str,
    batch: int | None,
    data: str | None,
    given: str | ModelDefinition | None,
    test_limit: int,
    best: bool = False,
) -> str:
    """Export the model of `model_dir` as `kind` and return a summary line.

    `given` is the model's file if it was moved, or the model itself where it has none.
    """
    refuse_on_others("export")
    if batch is not None and kind == "tflite":
        raise InputError(f"--batch-size={batch}: a tflite model takes one image at a time")
    files.check_bucket(output, "--output")
    model = models.restore_model(model_dir, given, best)
    if kind == "saved_model":
        return f"saved_model={export_saved_model(model, output, batch)}"
    return _run_tflite(model, output, data or model.description.data, test_limit)


def _run_tflite(model: RestoredModel, output: str, directory: str, test_limit: int) -> str:
    """Write `output`/model_int8.tflite: one image of unsigned bytes in, probabilities as bytes out.

    Calibrates all tensors on training examples of the dataset in `directory` and measures the
    accuracy on up to `test_limit` test examples.

    Raises:
        InputError: The model is not one that an Edge TPU runs.
        TrainingError: What was written would not do; it is there to look at.
    """
    if model.spec.kind != "image":
        raise InputError(
            "--format=tflite is for image models, because the Edge TPU can't look up tokens"
        )
    if not model.task.gives_classes:
        raise InputError("--format=tflite is for models that return one class for each example")
    params = model.params
    data = data_set.open_given(directory, params.seed)
    spec = data.manifest.input_spec(params.image_size)
    if spec != model.spec:
        raise DataError(
            f"--data={directory} has {spec}, but the model takes {model.spec}; use the dataset "
            "that it was trained on"
        )
    content = _convert(model, models.training_images(data, params, _REPRESENTATIVE))
    path = f"{output.rstrip('/')}/model_int8.tflite"
    files.write_bytes(path, content)
    batches = -(-test_limit // _TEST_BATCH)
    test = list(itertools.islice(models.test_examples(data, params, _TEST_BATCH), batches))
    found = [model.predict(tf.constant(batch.features))["classes"].numpy() for batch in test]
    right = np.concatenate(found) == np.concatenate([batch.labels for batch in test])
    original, converted = float(right.mean()), float(np.mean(list(_recognised(content, test))))
    accuracy = check_written(path, unsuitable_tensors(content), len(right), original, converted)
    logger.info(
        "edge-tpu: all tensors are integers of static shapes; to check whether each operation "
        "runs there, run `edgetpu_compiler --show_operations %s`",
        path,
    )
    logger.info("accuracy: %s", accuracy)
    return (
        f"tflite={path} bytes={len(content)} float_accuracy={original:.4f} "
        f"int8_accuracy={converted:.4f} examples={len(right)} edge_tpu=unchecked"
    )


def check_written(
    path: str, problems: list[str], examples: int, original: float, converted: float
) -> str:
    """Return a sentence about the accuracy, on so many examples, of the float and the int8 model.

    Raises:
        TrainingError: The loss is too large, or there are other `problems`.
    """
    lost = 100.0 * (original - converted)
    accuracy = (
        f"int8 loses {lost:.2f} points of accuracy on {examples} test examples "
        f"(from {original:.4f} to {converted:.4f})"
    )
    if lost > _MOST_LOST_POINTS:
        problems = [*problems, f"{accuracy}, more than {_MOST_LOST_POINTS:g}"]
    if problems:
        raise TrainingError(f"{path} doesn't fit the Edge TPU: {'; '.join(problems)}")
    return accuracy


def export_saved_model(model: RestoredModel, output: str, batch: int | None) -> str:
    """Write `output`/VERSION and return it; the version is the step, so that the latest one wins.

    The signature takes `batch` raw images or token ids (None: any number) and returns what the task
    predicts: for a class of each example `probabilities`, `classes` and, where the dataset names
    its classes, `names`. The tokenizer's file is in `assets.extra`.
    """
    path = f"{output.rstrip('/')}/{max(model.step, 1)}"
    names = model.description.class_names

    def predict(features: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = model.predict(features)
        if not names or "classes" not in outputs:
            return outputs
        return outputs | {"names": tf.gather(names, outputs["classes"])}

    exported = tf.Module()
    # A SavedModel keeps only variables that it finds by attributes.
    exported.module = model.module
    exported.predict = tf.function(predict, input_signature=[model.input_spec(batch)])
    signature = exported.predict.get_concrete_function()
    tf.saved_model.save(exported, path, signatures={SIGNATURE: signature})
    name, content = model.vocabulary
    if name:
        # Where TensorFlow keeps files that a SavedModel's own graph doesn't read.
        files.write_bytes(f"{path}/assets.extra/{name}", content)
    return path


# Full-integer int8 TFLite for the Edge TPU.
#
# Google's edgetpu_compiler alone says which operations run there. It is a program for Debian that
# no package index has.


def _convert(model: RestoredModel, representative: Array) -> bytes:
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
    # Integers only: the Edge TPU runs nothing else, and one operation in floats would leave the
    # rest of the model on the CPU.
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [image[np.newaxis].astype(np.float32)] for image in representative
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    converter.inference_output_type = tf.uint8
    try:
        with native_output_hidden():
            content: bytes = converter.convert()
    except Exception as error:  # The converter has no type of its own.
        raise InputError(
            f"this model can't be converted to int8: {str(error).partition(chr(10))[0]}"
        ) from error
    return unfuse_activations(content)


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
