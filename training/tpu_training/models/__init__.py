"""Models: the built-in ones, and what a model's author uses."""
