"""A user's tf.data function, `def dataset(split, context)` in a Python file."""
