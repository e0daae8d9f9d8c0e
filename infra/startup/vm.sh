# The VM: runs the trainer, which finds the TPU by its name, waits for it and drives it by gRPC.
# shellcheck shell=bash
# shellcheck source=infra/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-cpu"

start_training "$(attribute tpu-name)"
