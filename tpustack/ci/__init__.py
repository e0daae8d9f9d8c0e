"""The pipeline: what the workflows call, and what runs the same way on a laptop."""
