"""Tasks: a file each, with its loss, its metrics and what it makes of the examples.

A file NAME.py with a `task` is what `--task=NAME` takes; a user's own is such a file, too. They
load TensorFlow, so choose.py knows their names without importing them.
"""
