"""The machines that train: which TPU is meant, where it answers, and the strategy over it.

Only `cluster.py` loads TensorFlow.
"""
