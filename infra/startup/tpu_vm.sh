# Every host of a TPU VM that has something to do beside being a TPU. Further metadata:
#   tpu-serves-grpc    true: the runtime (a -pod one) serves gRPC by itself
#   tpu-pluggable      true: the image's TensorFlow finds the TPU through the plug-in in libtpu
#   tpu-runs-training  true: worker 0 runs the trainer, no other machine does
# shellcheck shell=bash
# shellcheck source=infra/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-tpu"

# Serves gRPC on every host, as the -pod runtimes do, with the worker that TensorFlow's wheel for
# TPUs brings along. The file with the runtime's environment is missing on bare runtimes.
serve_grpc() {
  local library setting
  local -a settings=()
  mkdir -p "$BASE"
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  library="$(libtpu_settings)"
  for setting in $library; do
    settings+=("--setenv=$setting")
  done
  log "serving gRPC"
  systemd-run --unit=grpc-tpu-worker --description="gRPC of the TPU" --collect \
    --property=Restart=on-failure --property=RestartSec=10 \
    --property=EnvironmentFile=-/home/tpu-runtime/tpu-env \
    --setenv="HOME=${HOME:-/root}" ${settings[@]+"${settings[@]}"} \
    "$PYTHON" -m tensorflow.python.tools.grpc_tpu_worker
}

# Whether this is a slice after the first, which only serves: TensorFlow drives one TPU.
is_further_slice() {
  attribute tpu-names >/dev/null &&
    ! attribute tpu-env | grep --quiet "^NODE_ID: '$(attribute tpu-name)'$"
}

# Runs what jobs worker 0 has all hosts of the slice run: programs that drive the chips of their own
# host, as those of JAX and PyTorch do.
follow_jobs() {
  if [[ "$(attribute training-jobs || true)" == true ]]; then
    require_scope
    await_grants
    start_jobs local
  fi
}

# Runs the trainer on worker 0. With gRPC the whole slice is one TPU for it, as Google documents for
# -pod runtimes; without, it drives the chips of its own host through libtpu.
train_here() {
  if is_further_slice; then
    log "worker 0 of $(attribute tpu-name) runs the trainer"
    [[ "$(attribute tpu-serves-grpc)" == true ]] || serve_grpc
  elif [[ "$(attribute agent-worker-number)" != 0 ]]; then
    log "worker 0 runs the trainer"
    [[ "$(attribute tpu-serves-grpc)" == true ]] || follow_jobs
  elif [[ "$(attribute tpu-serves-grpc)" == true ]]; then
    start_training "$(attribute tpu-name)" \
      "TPU_NAME=$(attribute tpu-name)" "TPU_LOAD_LIBRARY=0"
  else
    start_training local
  fi
}

if [[ "$(attribute tpu-runs-training)" == true ]]; then
  train_here
elif [[ "$(attribute tpu-serves-grpc)" != true ]]; then
  serve_grpc
fi
