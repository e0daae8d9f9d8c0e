"""Export full-integer int8 TFLite for the Edge TPU, and measure the loss of accuracy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.monitoring.terminal import native_output_hidden
from tpu_training.serving.export.agreement import Agreement
from tpu_training.serving.export.edge_tpu import unfuse_activations, unsuitable_tensors
from tpu_training.serving.export.examples import LabelledBatch
from tpu_training.serving.export.restore import RestoredModel


@dataclass(frozen=True)
class TfliteModel:
    """A written model, its accuracy beside the float model's, and what the Edge TPU can't take."""

    path: str
    bytes: int
    problems: tuple[str, ...]
    accuracy: Agreement


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


def _compare(model: RestoredModel, content: bytes, test: list[LabelledBatch]) -> Agreement:
    original = np.concatenate([_classes(model, batch) == batch.labels for batch in test])
    converted = np.array(list(_recognised(content, test)))
    return Agreement(
        examples=len(original),
        original_right=int(original.sum()),
        lost=int((original & ~converted).sum()),
        gained=int((converted & ~original).sum()),
    )


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
