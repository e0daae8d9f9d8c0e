"""Predict with a SavedModel: for files, and over TensorFlow Serving's REST API."""
