"""The models that `--model=NAME` knows, one file each.

A file has `Params`, `create_model` and, if it wants another than the softmax cross-entropy,
`losses`; see model_registry.py. None of them loads TensorFlow when it is imported, so that
--help and wrong input are answered at once: the networks themselves are in tpu_training/networks.
"""
