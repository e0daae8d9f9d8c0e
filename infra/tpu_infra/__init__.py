"""The Pulumi program: the bucket, the VM and the TPU of one stack, and what they need."""
