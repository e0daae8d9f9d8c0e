"""Export a trained model, and predict with what was exported."""
