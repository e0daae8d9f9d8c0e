"""From a model directory to what others can run: SavedModel, TFLite for the Edge TPU, ONNX."""
