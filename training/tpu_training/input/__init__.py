"""The stages of the input pipeline; tpu_training/input_pipeline.py puts them together."""
