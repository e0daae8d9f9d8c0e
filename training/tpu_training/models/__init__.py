"""Models: a folder each, and beside them what a model's author uses.

A folder NAME is what `--model=NAME` takes. It has `Params`, `create_model` and, for another loss
than the softmax cross-entropy, `losses`; see registry.py. Importing it loads no TensorFlow, so that
--help and wrong input are answered at once: the network itself is in NAME/network.py.
"""
