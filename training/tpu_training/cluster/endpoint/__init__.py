"""Finding a TPU's gRPC endpoint and waiting until it answers. Needs no TensorFlow."""
