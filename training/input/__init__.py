"""The stages of the input pipeline; training/input_pipeline.py puts them together."""
