"""Predictions from a SavedModel: for files, and over TensorFlow Serving's REST API."""
