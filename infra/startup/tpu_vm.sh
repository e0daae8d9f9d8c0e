# Every host of a TPU VM that has something to do beside being a TPU. Further metadata:
#   tpu-serves-grpc    true: the runtime (a -pod one) serves gRPC by itself
#   tpu-runs-training  true: worker 0 runs the trainer, no other machine does
# shellcheck shell=bash
# shellcheck source=infra/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-tpu"

# Serves gRPC on every host, as the -pod runtimes do, with the worker that TensorFlow's wheel for
# TPUs brings along. The file with the runtime's environment is missing on bare runtimes.
serve_grpc() {
  mkdir -p "$BASE"
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  log "serving gRPC"
  systemd-run --unit=grpc-tpu-worker --description="gRPC of the TPU" --collect \
    --property=Restart=on-failure --property=RestartSec=10 \
    --property=EnvironmentFile=-/home/tpu-runtime/tpu-env \
    --setenv="HOME=${HOME:-/root}" \
    "$PYTHON" -m tensorflow.python.tools.grpc_tpu_worker
}

# Whether this is a slice after the first, which only serves: TensorFlow drives one TPU.
is_further_slice() {
  attribute tpu-names >/dev/null &&
    ! attribute tpu-env | grep --quiet "^NODE_ID: '$(attribute tpu-name)'$"
}

# Runs the trainer on worker 0. With gRPC the whole slice is one TPU for it, as Google documents for
# -pod runtimes; without, it drives the chips of its own host through libtpu.
train_here() {
  if is_further_slice; then
    log "worker 0 of $(attribute tpu-name) runs the trainer"
    [[ "$(attribute tpu-serves-grpc)" == true ]] || serve_grpc
  elif [[ "$(attribute agent-worker-number)" != 0 ]]; then
    log "worker 0 runs the trainer"
  elif [[ "$(attribute tpu-serves-grpc)" == true ]]; then
    start_training "$(attribute tpu-name)" \
      "TPU_NAME=$(attribute tpu-name)" "TPU_LOAD_LIBRARY=0"
  else
    start_training local \
      "NEXT_PLUGGABLE_DEVICE_USE_C_API=true" "TF_PLUGGABLE_DEVICE_LIBRARY_PATH=/lib/libtpu.so"
  fi
}

if [[ "$(attribute tpu-runs-training)" == true ]]; then
  train_here
elif [[ "$(attribute tpu-serves-grpc)" != true ]]; then
  serve_grpc
fi
