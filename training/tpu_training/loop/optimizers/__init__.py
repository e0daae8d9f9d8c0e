"""Optimizers on plain tf.Module, the same under every strategy and TensorFlow version.

Keras' are not used: Keras 3 clips gradients before the replicas' sum (so a norm is taken of a part)
and can't be told to leave the sum to the caller, which gradient accumulation needs (keras#20582).
"""
