"""Keras models in files, as `--model` takes them."""
