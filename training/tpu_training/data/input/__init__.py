"""The stages of the input pipeline; pipeline.py puts them together."""
