"""`tpu-training export`: a SavedModel."""

from __future__ import annotations

import tensorflow as tf

import tpu_training.serving.model as models
from tpu_training.data import files
from tpu_training.models.registry import ModelDefinition
from tpu_training.serving.model import SIGNATURE, RestoredModel


def run_export(
    model_dir: str,
    output: str,
    batch: int | None,
    given: str | ModelDefinition | None,
    best: bool = False,
) -> str:
    """Export the model of `model_dir` and return a summary line.

    `given` is the model's file if it was moved, or the model itself where it has none.
    """
    files.check_bucket(output, "--output")
    model = models.restore_model(model_dir, given, best)
    return f"saved_model={export_saved_model(model, output, batch)}"


def export_saved_model(model: RestoredModel, output: str, batch: int | None) -> str:
    """Write `output`/VERSION and return it; the version is the step, so that the latest one wins.

    The signature takes `batch` raw images or token ids (None: any number) and returns what the task
    predicts: for a class of each example `probabilities`, `classes` and, where the dataset names
    its classes, `names`.
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
    return path
