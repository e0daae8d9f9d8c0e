"""Models: the built-in ones, and what a model's author uses.

A module NAME.py with `Params`, `create_model` and, for another loss than the task's, `losses` is
what `--model=NAME` takes; see registry.py. Importing it loads no TensorFlow, so that --help and
wrong input are answered at once: the networks themselves are in networks.py.
"""
