"""Export ONNX with the library tf2onnx."""

import tensorflow as tf

from tpu_training.data import files
from tpu_training.serving.export.restore import RestoredModel

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
