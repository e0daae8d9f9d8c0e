"""One stack for each file in stacks/: a bucket, a VM, a TPU and the training that runs on them."""

from pathlib import Path

from tpu_infra import program

# The stack's outputs by name, such as outputs["bucket_name"], for resources of your own below.
outputs = program.run(Path(__file__).parent)
