# Every host of a TPU VM that does more than serve a TPU.
# shellcheck shell=bash
# shellcheck source=agent/tpu_agent/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-tpu"
# How the worker reads buckets, as in training/tpu_training/job/start.py, which says why.
readonly BUCKET_SETTINGS=(
  GCS_RETRY_CONFIG_INIT_DELAY_TIME_US=250000
  GCS_RETRY_CONFIG_MAX_DELAY_TIME_US=8000000
  GCS_RETRY_CONFIG_MAX_RETRIES=20
  GCS_READ_CACHE_BLOCK_SIZE_MB=32
  GCS_READ_CACHE_MAX_SIZE_MB=0
)

# Serves gRPC on every host, as the -pod runtimes do, with the worker that TensorFlow's wheel for
# TPUs brings along. The file with the runtime's environment is missing on bare runtimes.
serve_grpc() {
  local library setting
  local -a settings=()
  mkdir -p "$BASE"
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  library="$(libtpu_settings)"
  for setting in $library "${BUCKET_SETTINGS[@]}"; do
    settings+=("--setenv=$setting")
  done
  log "serving gRPC"
  systemd-run --unit=grpc-tpu-worker --description="gRPC of the TPU" --collect \
    --property=Restart=on-failure --property=RestartSec=10 \
    --property=EnvironmentFile=-/home/tpu-runtime/tpu-env \
    --setenv="HOME=${HOME:-/root}" "${settings[@]}" \
    "$PYTHON" -m tensorflow.python.tools.grpc_tpu_worker
}

# Whether this is a slice after the first, which only serves: TensorFlow drives one TPU.
is_further_slice() {
  attribute tpu-names >/dev/null &&
    ! attribute tpu-env | grep --quiet "^NODE_ID: '$(attribute tpu-name)'$"
}

# Whether this is worker 0. A single machine of Compute Engine may have no number.
is_first_host() {
  local number
  if ! number="$(attribute agent-worker-number)" && attribute tpu-is-this-machine >/dev/null; then
    [[ "$(attribute worker-network-endpoints)" != *,* ]]
  else
    [[ "$number" == 0 ]]
  fi
}

# Runs what jobs worker 0 has all hosts of the slice run: programs that drive the chips of their own
# host, as those of JAX and PyTorch do.
follow_jobs() {
  if attribute training-jobs >/dev/null; then
    require_scope
    await_grants
    start_jobs local
  fi
}

# Runs the trainer on worker 0. With gRPC the whole slice is one TPU for it, as Google documents for
# -pod runtimes; without, it drives the chips of its own host through libtpu. On JAX it runs on every
# host: the agents there start them together.
train_here() {
  if [[ "$(attribute training-backend)" == jax ]]; then
    start_training local
  elif attribute tpu-is-this-machine >/dev/null && is_first_host; then
    start_training local
  elif is_further_slice; then
    log "worker 0 of $(attribute tpu-name) runs the trainer"
    [[ "$(attribute tpu-serves-grpc)" == true ]] || serve_grpc
  elif ! is_first_host; then
    log "worker 0 runs the trainer"
    [[ "$(attribute tpu-serves-grpc)" == true ]] || follow_jobs
  elif [[ "$(attribute tpu-serves-grpc)" == true ]]; then
    start_training "$(attribute tpu-name)" \
      "TPU_NAME=$(attribute tpu-name)" "TPU_LOAD_LIBRARY=0"
  else
    start_training local
  fi
}

# Prints what Google has announced for a machine, whose metadata is on standard input: its end, or
# maintenance.
announced() {
  python3 -c 'import json, sys
instance = json.load(sys.stdin)
quiet = {"preempted": "FALSE", "maintenanceEvent": "NONE", "upcomingMaintenance": ""}
print(*(f"{k}={instance[k]}" for k in quiet if instance.get(k) not in (None, "", quiet[k])))'
}

# Writes to an object, by its address for uploads, whenever something else is announced for this
# machine. A request waits for it, so that 30 seconds of notice are hardly shortened.
# https://docs.cloud.google.com/tpu/docs/view-maintenance-notifications (2026-11-24)
tell_notices() {
  local found now said="" etag=0 wait="recursive=true&alt=json&wait_for_change=true&timeout_sec=60"
  while true; do
    if ! found="$(curl --silent --fail --include --max-time 65 --header "Metadata-Flavor: Google" \
      "$METADATA/instance/?$wait&last_etag=$etag")"; then
      sleep 1
      continue
    fi
    etag="$(sed --quiet 's/^etag: *\([[:graph:]]*\).*/\1/Ip' <<<"$found")"
    now="$(sed '1,/^\r*$/d' <<<"$found" | announced)"
    if [[ -z "$now" || "$now" == "$said" ]] ||
      as_machine --fail --output /dev/null --data-binary "$now" "$1"; then
      said="$now"
    else
      etag=0
      sleep 1
    fi
  done
}

# Tells the trainer, which runs on another machine, of what is announced for this one. That it is
# told is all it goes by: it saves a checkpoint.
pass_notices_on() {
  local bucket
  bucket="$(attribute bucket-url)"
  systemd-run --unit=notices --description="notices to the trainer" --collect \
    --property=Restart=always --property=RestartSec=1 --property=StartLimitIntervalSec=0 \
    /bin/bash -c "METADATA=$METADATA; $(declare -f metadata json_field as_machine announced \
      tell_notices)"'; tell_notices "$1"' notices \
    "https://storage.googleapis.com/upload/storage/v1/b/${bucket#gs://}/o?uploadType=media&name=notices/$(attribute tpu-name)" ||
    log "the trainer hears of notices already"
}

if [[ "$(attribute tpu-runs-training)" == true ]]; then
  train_here
else
  pass_notices_on
  [[ "$(attribute tpu-serves-grpc)" == true ]] || serve_grpc
fi
