"""Export a trained model as SavedModel, TFLite for the Edge TPU, or ONNX."""
