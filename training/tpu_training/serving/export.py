"""`tpu-training export`: a SavedModel, int8 TFLite for the Edge TPU, or ONNX."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.data_set import open_given
from tpu_training.errors import DataError, InputError, TrainingError
from tpu_training.models.registry import ModelDefinition
from tpu_training.serving.edge_tpu import TfliteModel, export_tflite
from tpu_training.serving.model import (
    LabelledBatch,
    RestoredModel,
    restore_model,
    test_examples,
    training_examples,
)

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
    files.check_bucket(output, "--output")
    model = restore_model(model_dir, given, best)
    if kind == "saved_model":
        return f"saved_model={export_saved_model(model, output, batch)}"
    if kind == "onnx":
        return f"onnx={export_onnx(model, output, batch)}"
    return _run_tflite(model, output, data or model.description.data, test_limit)


def _run_tflite(model: RestoredModel, output: str, directory: str, test_limit: int) -> str:
    if model.spec.kind != "image":
        raise InputError("--format=tflite is for image models: the Edge TPU can't look up tokens")
    if not model.task.gives_classes:
        raise InputError("--format=tflite is for models that give one class for each example")
    params = model.params
    data = open_given(directory, params.seed)
    spec = data.manifest.input_spec(params.image_size)
    if spec != model.spec:
        raise DataError(
            f"--data={directory} gives {spec}, the model takes {model.spec}; give the data set "
            "that it was trained on"
        )
    test = _first(test_examples(data, params, _TEST_BATCH), test_limit)
    written = export_tflite(model, output, training_examples(data, params, _REPRESENTATIVE), test)
    _refuse(written)
    logger.info(
        "edge-tpu: all tensors are integers of static shapes; whether each operation runs there is "
        "unchecked: `edgetpu_compiler --show_operations %s` says so",
        written.path,
    )
    logger.info("accuracy: %s", written.accuracy)
    return (
        f"tflite={written.path} bytes={written.bytes} "
        f"float_accuracy={written.accuracy.original:.4f} "
        f"int8_accuracy={written.accuracy.converted:.4f} "
        f"examples={written.accuracy.examples} edge_tpu=unchecked"
    )


def _refuse(written: TfliteModel) -> None:
    """Raise TrainingError when the model would not do; it is there to look at."""
    problems = list(written.problems)
    if written.accuracy.lost_points > _MOST_LOST_POINTS:
        problems.append(f"{written.accuracy}, more than {_MOST_LOST_POINTS:g}")
    if problems:
        raise TrainingError(f"{written.path} is not fit for the Edge TPU: {'; '.join(problems)}")


def _first(batches: Iterable[LabelledBatch], examples: int) -> list[LabelledBatch]:
    """Take enough batches for at least `examples`."""
    return list(itertools.islice(batches, -(-examples // _TEST_BATCH)))


SIGNATURE = "serving_default"


class _Exported(tf.Module):  # type: ignore[misc]
    """Holds the variables of the signature."""

    def __init__(self, model: RestoredModel, batch: int | None) -> None:
        super().__init__()
        self.module = model.module
        names = model.description.class_names

        def predict(features: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = model.predict(features)
            if not names or "classes" not in outputs:
                return outputs
            return outputs | {"names": tf.gather(names, outputs["classes"])}

        self.predict = tf.function(predict, input_signature=[model.input_spec(batch)])


def export_saved_model(model: RestoredModel, output: str, batch: int | None) -> str:
    """Write `output`/VERSION and return it; the version is the step, so that the latest one wins.

    The signature takes `batch` raw images or token ids (None: any number) and returns what the task
    predicts: for a class of each example `probabilities`, `classes` and, where the data set names
    its classes, `names`.
    """
    path = f"{output.rstrip('/')}/{max(model.step, 1)}"
    exported = _Exported(model, batch)
    signature = exported.predict.get_concrete_function()
    tf.saved_model.save(exported, path, signatures={SIGNATURE: signature})
    return path


# https://onnx.ai/onnx/intro/converters.html#opset; supported since ONNX Runtime 1.12 (2022).
_OPSET = 17


def export_onnx(model: RestoredModel, output: str, batch: int | None) -> str:
    """Write `output`/model.onnx and return it; input and outputs as in the SavedModel."""
    import tf2onnx

    signature = [model.input_spec(batch)]
    function = tf.function(model.predict, input_signature=signature)
    proto, _ = tf2onnx.convert.from_function(function, input_signature=signature, opset=_OPSET)
    path = f"{output.rstrip('/')}/model.onnx"
    files.write_bytes(path, proto.SerializeToString())
    return path
