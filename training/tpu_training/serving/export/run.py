"""Run `tpu-training export`: the part that needs TensorFlow."""

import itertools
import logging
from collections.abc import Iterable

from tpu_training.data import files
from tpu_training.data.function.open import open_given
from tpu_training.errors import DataError, InputError, TrainingError
from tpu_training.models.registry import ModelDefinition
from tpu_training.serving.export.examples import LabelledBatch, test_examples, training_examples
from tpu_training.serving.export.onnx import export_onnx
from tpu_training.serving.export.restore import RestoredModel, restore_model
from tpu_training.serving.export.saved_model import export_saved_model
from tpu_training.serving.export.tflite import TfliteModel, export_tflite

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
