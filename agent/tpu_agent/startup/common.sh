#!/bin/bash
# Functions that the start-up scripts of the VM (vm.sh) and of the TPU VM (tpu_vm.sh) share; this
# file is put in front of either. Everything that differs between machines is in their metadata,
# whose keys core/tpu_core/contract.py explains.
# A script may run at every boot: what is done already is not done again.
set -euo pipefail

readonly METADATA="http://metadata.google.internal/computeMetadata/v1"
readonly BASE="${HOME:-/root}/tpu-stack"
# In memory: what keeps limits starts on a full disk, too.
readonly RUN="${XDG_RUNTIME_DIR:-/run}/tpu-stack"

log() {
  echo "tpu-stack: $*"
}

# Prints a metadata value; fails if it is not set.
metadata() {
  curl --silent --fail --retry 5 --retry-connrefused --header "Metadata-Flavor: Google" \
    "$METADATA/instance/$1"
}

attribute() {
  metadata "attributes/$1"
}

# Prints one field of a JSON object on standard input.
json_field() {
  python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# curl as the machine's service account.
as_machine() {
  local token
  token="$(metadata "service-accounts/default/token" | json_field access_token)"
  curl --silent --show-error --retry 5 --retry-connrefused \
    --header "Authorization: Bearer $token" "$@"
}

# Prints the JSON API's address of gs://BUCKET/PATH.
object_address() {
  python3 - "$1" <<'PYTHON'
import sys
from urllib.parse import quote

bucket, _, path = sys.argv[1].removeprefix("gs://").partition("/")
print(f"https://storage.googleapis.com/storage/v1/b/{quote(bucket)}/o/{quote(path, safe='')}")
PYTHON
}

# Downloads gs://BUCKET/PATH to a file.
download() {
  as_machine --fail --output "$2" "$(object_address "$1")?alt=media"
}

# Prints the HTTP status of what the machine gets at an address.
status_of() {
  as_machine --output /dev/null --write-out '%{http_code}' "$1"
}

# Stops a machine whose access scopes do not let it use what the job needs: unlike a grant, that
# never comes by waiting.
require_scope() {
  local wanted="https://www.googleapis.com/auth/cloud-platform" scopes
  scopes="$(metadata "service-accounts/default/scopes")"
  if ! grep --quiet --line-regexp "$wanted" <<<"$scopes"; then
    log "this VM lacks the access scope $wanted: stop it, set the scope, and start it again"
    exit 1
  fi
}

# Waits until the machine may read the bucket and look the TPU up. It may not at first: it is made
# in addition to its grants, which Google says count after two minutes and sometimes after seven.
await_grants() {
  local bucket tpu address deadline=$((SECONDS + 600)) said=""
  local -a addresses
  bucket="$(object_address "$(attribute bucket-url)/data")"
  tpu="projects/$(attribute tpu-project)/locations/$(attribute tpu-zone)"
  addresses=("$bucket" "https://tpu.googleapis.com/v2/$tpu/nodes/$(attribute tpu-name)")
  # No TPU API knows a machine of Compute Engine.
  if attribute tpu-is-this-machine >/dev/null; then
    addresses=("$bucket")
  fi
  for address in "${addresses[@]}"; do
    while [[ "$(status_of "$address")" == 403 ]]; do
      if ((SECONDS > deadline)); then
        log "after ten minutes the machine's account still may not GET $address (HTTP status 403)"
        exit 1
      fi
      if [[ -z "$said" ]]; then
        log "waiting for the grants of the machine's account"
        said=yes
      fi
      sleep 1
    done
  done
}

object_exists() {
  local status
  status="$(status_of "$(object_address "$1")")"
  case "$status" in
    200) return 0 ;;
    404) return 1 ;;
    *) log "cannot look up $1: HTTP status $status"; exit 1 ;;
  esac
}

# apt-get, again and again for ten minutes: just after boot the image's own updates hold its locks. It
# waits for dpkg's on its own (apt.conf(5), since apt 1.9.11), but not for that of the package lists.
apt_get() {
  local deadline=$((SECONDS + 600))
  until DEBIAN_FRONTEND=noninteractive apt-get --quiet --option DPkg::Lock::Timeout=60 "$@"; do
    if ((SECONDS > deadline)); then
      log "apt-get $1 fails after ten minutes still"
      return 1
    fi
    log "apt-get $1 failed: it is run again in 10 seconds"
    sleep 10
  done
}

# Whether the image's Python can load a package: TensorFlow of some TPU images ends with a
# segmentation fault.
image_loads() {
  python3 -c "import $1" >/dev/null 2>&1
}

# Makes sure that there is a Python with TensorFlow VERSION (of PACKAGE); sets PYTHON to it.
# The image's own is used if it has exactly that version. Where the trainer runs on JAX, its steps
# need JAX alone, and TensorFlow is that of the CPU.
ensure_tensorflow() {
  local version="$1" package="$2" found backend needs=""
  local -a more=()
  if [[ "$version" == none ]]; then
    PYTHON="python3"
    log "no TensorFlow is set: jobs bring their own framework"
    return
  fi
  found="$(python3 -c 'from importlib import metadata as m
names = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-intel")
have = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}
print(next((have[n] for n in names if n in have), ""))')"
  backend="$(attribute training-backend)" || backend=""
  if [[ "$backend" == jax ]]; then
    package="tensorflow-cpu" more=("jax[tpu]<0.12") needs="jax"
  elif [[ "$package" == tensorflow-tpu ]]; then
    needs="tensorflow"
  fi
  if [[ "$found" == "$version" ]]; then
    if [[ -z "$needs" ]] || image_loads "$needs"; then
      PYTHON="python3"
      log "using the image's TensorFlow $found"
      return
    fi
    log "the image has TensorFlow $found, but cannot load $needs"
  fi
  PYTHON="$BASE/venv-$version/bin/python3"
  if [[ -e "$BASE/venv-$version/installed" ]]; then
    return
  fi
  log "installing $package $version${more[*]:+ and ${more[*]}} (the image has ${found:-none})"
  if ! python3 -c 'import ensurepip' 2>/dev/null; then
    apt_get update
    apt_get install --yes python3-venv
  fi
  python3 -m venv --clear "$BASE/venv-$version"
  install_tensorflow "$package==$version" ${more[@]+"${more[@]}"}
  touch "$BASE/venv-$version/installed"
}

# Installs TensorFlow and what draws the training's report with PYTHON: only wheels with the hashes
# of the lock, if there is one for this release.
install_tensorflow() {
  local lock="$BASE/tensorflow.lock" wheels
  local -a pip=("$PYTHON" -m pip install --quiet) hashed=(--require-hashes --only-binary :all:)
  attribute tensorflow-lock >"$lock"
  wheels="$(attribute training-wheels)" || wheels=""
  if [[ "$(<"$lock")" == none ]]; then
    log "no hashes are known for $*: what pip gets for it is not checked"
    "${pip[@]}" ${wheels:+--find-links "$wheels"} "$@"
    # The report does without.
    "${pip[@]}" matplotlib ||
      log "matplotlib is not installed: the training's report will have no charts"
  elif [[ -z "$wheels" ]]; then
    "${pip[@]}" "${hashed[@]}" --requirement "$lock"
  else
    # The libtpu of some releases is in Google's own list alone, which has no hashes: all but that.
    "${pip[@]}" "${hashed[@]}" --no-deps --requirement "$lock"
    "${pip[@]}" --no-index --find-links "$wheels" "$1"
  fi
}

# Prints the libtpu that pip installed with tensorflow-tpu for PYTHON; nothing for an image's own.
installed_libtpu() {
  "$PYTHON" -c 'from importlib import metadata, util
try:
    metadata.version("tensorflow-tpu")
    print(util.find_spec("libtpu").submodule_search_locations[0] + "/libtpu.so")
except (metadata.PackageNotFoundError, AttributeError):
    pass'
}

# Prints the libtpu of an image, for which Google documents the first of these.
image_libtpu() {
  find /lib/libtpu.so /usr/lib/libtpu.so 2>/dev/null | head --lines=1
}

# Prints what TensorFlow on this TPU VM needs in its environment to find the TPU, a NAME=VALUE in
# each line: where libtpu is, which pip installed next to TensorFlow or the image has. A TensorFlow of
# the image that takes no plug-in (-se) has all that it needs. Bare images have no libtpu.
libtpu_settings() {
  local library
  library="$(installed_libtpu)"
  if [[ -z "$library" && "$(attribute tpu-pluggable)" == true ]]; then
    library="$(image_libtpu || true)"
  fi
  [[ -n "$library" ]] || return 0
  echo "NEXT_PLUGGABLE_DEVICE_USE_C_API=true"
  echo "TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$library"
  echo "TPU_LIBRARY_PATH=$library"
}

# Downloads the training wheel, checks it and unpacks it; sets PACKAGES to where it is. It is pure
# Python and needs TensorFlow alone, so that unpacking installs it, also where there is no pip.
install_training() {
  local url sha256 wheel
  url="$(attribute training-wheel)"
  sha256="$(attribute training-wheel-sha256)"
  wheel="$BASE/$(basename "$url")"
  PACKAGES="$BASE/packages-${sha256:0:12}"
  if [[ -e "$PACKAGES/installed" ]]; then
    return
  fi
  log "installing $url"
  download "$url" "$wheel"
  if ! echo "$sha256  $wheel" | sha256sum --check --status; then
    log "$url is not what was uploaded: its SHA-256 is not $sha256"
    exit 1
  fi
  rm -rf "$PACKAGES"
  "$PYTHON" -m zipfile --extract "$wheel" "$PACKAGES"
  touch "$PACKAGES/installed"
}

# Starts the agent: it keeps limits from now on, and runs the trainer once that is ordered. A trainer
# outlives an agent that is killed: the next one keeps it.
start_agent() {
  if systemctl is-active --quiet tpu-stack-agent; then
    return
  fi
  mkdir -p "$RUN"
  attribute agent >"$RUN/agent.py"
  # What agents before this boot have left; who has the lock is never in doubt.
  if ! { mkdir -p "$BASE/trainer" && find "$BASE/trainer" -mindepth 1 ! -name lock -delete; }; then
    log "$BASE/trainer can't be cleared: the agent keeps limits, and may be unable to train"
  fi
  systemd-run --unit=tpu-stack-agent --description="tpu-stack agent" --collect \
    --property=Restart=always --property=RestartSec=5 --property=StartLimitIntervalSec=0 \
    --property=KillMode=process \
    --property=StandardOutput=journal+console --property=StandardError=journal+console \
    --setenv=PYTHONUNBUFFERED=1 --setenv="TPU_STACK_BASE=$BASE" \
    "$(command -v python3)" "$RUN/agent.py"
}

# Makes the machine one for jobs without root: their user finds what lies below the home folder and
# lists nothing there, the packet filter is there, and the last 5 % of the disk are root's.
let_jobs_in() {
  chmod o+x "${HOME:-/root}"
  if ! command -v nft >/dev/null; then
    apt_get update
    apt_get install --yes nftables
  fi
  tune2fs -m 5 "$(findmnt --noheadings --output SOURCE --target "$BASE")" ||
    log "a job may fill this disk: its file system keeps no part of it for root"
}

# Runs the jobs of the queue as a systemd unit. A job outlives a runner that ends: the next one goes
# on with it, or its supervisor ends it.
# Arguments as start_training has them.
start_jobs() {
  local tpu="$1" here="" setting library account
  local -a settings=()
  shift
  mkdir -p "$BASE"
  account="$(attribute training-jobs)"
  if [[ "$account" != root ]]; then
    let_jobs_in
  fi
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  if [[ "$tpu" == local ]]; then
    here=here
    library="$(libtpu_settings)"
    # The settings have no blanks.
    # shellcheck disable=SC2086
    set -- "$@" $library
  fi
  install_training
  attribute agent >"$BASE/jobs.py"
  for setting in "HOME=${HOME:-/root}" "PYTHONUNBUFFERED=1" "TPU_STACK_PACKAGES=$PACKAGES" \
    "TPU_STACK_PYTHON=$(command -v "$PYTHON")" "TPU_STACK_JOB_ACCOUNT=$account" "$@"; do
    settings+=("--setenv=$setting")
  done
  log "running the jobs of $(attribute bucket-url)"
  # shellcheck disable=SC2086 # One word or none.
  systemd-run --unit=jobs --description="tpu-stack jobs" --collect \
    --property=Restart=always --property=RestartSec=1 --property=StartLimitIntervalSec=0 \
    --property=KillMode=process --property=LimitMEMLOCK=infinity \
    --property=StandardOutput=journal+console --property=StandardError=journal+console \
    "${settings[@]}" "$(command -v python3)" "$BASE/jobs.py" jobs $here
}

# Starts a TPU that was stopped because nothing trained.
wake_tpu() {
  if attribute limits >/dev/null; then
    python3 "$RUN/agent.py" wake
  fi
}

# Writes what the agent runs, whole or not at all: a command, its environment, and where to mark in
# the bucket that it succeeded, so that a machine which starts again (or takes another's place) does
# not repeat a finished job. Arguments: the mark, NAME=VALUE of the environment, --, the command.
order_training() {
  mkdir -p "$BASE/trainer"
  python3 - "$@" >"$BASE/trainer/order.new" <<'PYTHON'
import json
import sys

mark, *rest = sys.argv[1:]
end = rest.index("--")
environment = dict(setting.split("=", 1) for setting in rest[:end])
print(json.dumps({"finished": mark, "environment": environment, "command": rest[end + 1 :]}))
PYTHON
  mv "$BASE/trainer/order.new" "$BASE/trainer/order.json"
}

# Lets the agent run the trainer: it is started again after a crash, not after wrong input (exit
# code 2), and its output goes to the journal and the serial port.
# Arguments: the TPU for --tpu, then NAME=VALUE of the environment.
start_training() {
  local tpu="$1" bucket job finished names library
  local -a arguments=()
  shift
  # For programs that use several slices.
  if names="$(attribute tpu-names)"; then
    set -- "$@" "TPU_NAMES=$names"
  fi
  bucket="$(attribute bucket-url)"
  job="$(attribute training-job)"
  finished="$bucket/jobs/$job/finished"
  start_agent
  require_scope
  await_grants
  if attribute training-jobs >/dev/null; then
    start_jobs "$tpu" "$@"
    return
  fi
  if object_exists "$finished"; then
    log "the job $job has finished already ($finished); set training.job to run another one"
    return
  fi
  wake_tpu
  mkdir -p "$BASE"
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  if [[ "$tpu" == local ]]; then
    library="$(libtpu_settings)"
    # The settings have no blanks.
    # shellcheck disable=SC2086
    set -- "$@" $library
  fi
  install_training
  attribute training-args >"$BASE/arguments.json"
  mapfile -d '' -t arguments < <(python3 -c '
import json, sys
for argument in json.load(open(sys.argv[1])):
    print(argument, end="\0")' "$BASE/arguments.json")
  log "starting the job $job"
  order_training "jobs/$job/finished" \
    "HOME=${HOME:-/root}" "PYTHONPATH=$PACKAGES" "PYTHONUNBUFFERED=1" "$@" -- \
    "$PYTHON" -m tpu_training train-and-evaluate \
    "--tpu=$tpu" "--tpu-zone=$(attribute tpu-zone)" "--tpu-project=$(attribute tpu-project)" \
    "--data=$bucket/data" "--model-dir=$bucket/jobs/$job" ${arguments[@]+"${arguments[@]}"}
}
