"""Export a SavedModel for TensorFlow Serving, Vertex AI and `tpu-training serve`."""

import tensorflow as tf

from tpu_training.serving.export.restore import RestoredModel

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
