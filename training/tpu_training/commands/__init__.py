"""The commands beside the modes of a job, one file each.

Such a file has `add(modes)`, which adds its parser, and a command whose `run` prints its
results and returns the exit code. None of them loads TensorFlow before it runs.
"""
