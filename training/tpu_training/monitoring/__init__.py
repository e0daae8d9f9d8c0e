"""Observe a training: progress, TensorBoard events, step times, profiles, the report."""
