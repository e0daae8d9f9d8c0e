"""Optimizers on plain tf.Module, the same under every strategy and TensorFlow version.

They replace Keras' optimizers because Keras 3 clips gradients before summing them over the replicas
(so the norm is that of one replica's part) and can't leave the sum to the caller, which gradient
accumulation needs (keras#20582).
"""
