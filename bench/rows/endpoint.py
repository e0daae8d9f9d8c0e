"""Steps a second through the TPU's gRPC endpoint against the same replicas in this process."""
