"""Find a TPU's gRPC endpoint and wait until it answers. Needs no TensorFlow."""
