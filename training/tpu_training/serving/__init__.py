"""Export a trained model, and predict with what was exported."""

EXPORTED = ("saved_model", "tflite")
"""What `export` writes."""
