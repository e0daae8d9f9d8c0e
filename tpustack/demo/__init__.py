"""`make demo`: every step from an empty machine to a trained model and back to nothing."""
