#!/bin/bash
# Functions that the start-up scripts of the VM (vm.sh) and of the TPU VM (tpu_vm.sh) share; infra
# puts this file in front of either. Everything that differs between machines is in their metadata:
#   tpu-name, tpu-zone, tpu-project    the TPU that the training uses
#   tpu-names                          all slices, with commas between them, if there are several
#   bucket-url                         gs://BUCKET
#   training-wheel, training-wheel-sha256
#   training-args                      JSON list of further arguments
#   training-tensorflow                version that the trainer needs
#   training-job                       name of this run; results lie under BUCKET/jobs/NAME
#   limits, watchdog                   when the TPU is taken down, and the program that does it
# A script may run at every boot: what is done already is not done again.
set -euo pipefail

readonly METADATA="http://metadata.google.internal/computeMetadata/v1"
readonly BASE="${HOME:-/root}/tpu-stack"

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
# beside its grants, which Google says count after two minutes and sometimes after seven.
await_grants() {
  local bucket tpu address deadline=$((SECONDS + 600)) said=""
  bucket="$(object_address "$(attribute bucket-url)/data")"
  tpu="projects/$(attribute tpu-project)/locations/$(attribute tpu-zone)"
  tpu="https://tpu.googleapis.com/v2/$tpu/nodes/$(attribute tpu-name)"
  for address in "$bucket" "$tpu"; do
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

# Makes sure that there is a Python with TensorFlow VERSION (of PACKAGE); sets PYTHON to it.
# The image's own is used if it has exactly that version.
ensure_tensorflow() {
  local version="$1" package="$2" found
  found="$(python3 -c 'from importlib import metadata as m
names = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-intel")
have = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in m.distributions()}
print(next((have[n] for n in names if n in have), ""))')"
  if [[ "$found" == "$version" ]]; then
    PYTHON="python3"
    log "using the image's TensorFlow $found"
    return
  fi
  PYTHON="$BASE/venv-$version/bin/python3"
  if [[ -e "$BASE/venv-$version/installed" ]]; then
    return
  fi
  log "installing $package $version (the image has ${found:-none})"
  if ! python3 -c 'import ensurepip' 2>/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes python3-venv
  fi
  python3 -m venv --clear "$BASE/venv-$version"
  "$PYTHON" -m pip install --quiet "$package==$version"
  # Draws the training's report, which does without.
  "$PYTHON" -m pip install --quiet matplotlib ||
    log "matplotlib is not installed: the training's report will have no charts"
  touch "$BASE/venv-$version/installed"
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

# Writes what the training unit runs: a command, and then a mark in the bucket that it succeeded, so
# that a machine which starts again (or takes another's place) does not repeat a finished job.
write_runner() {
  {
    echo "#!/bin/bash"
    echo "set -euo pipefail"
    declare -p METADATA
    declare -f metadata json_field as_machine
    cat <<'RUNNER'
mark="$1"
shift
"$@"
as_machine --fail --output /dev/null --header "Content-Type: text/plain" \
  --data-binary "$(date --utc +%FT%TZ)" "$mark"
RUNNER
  } >"$BASE/run.sh"
}

# Prints the address that creates gs://BUCKET/PATH.
upload_address() {
  python3 - "$1" <<'PYTHON'
import sys
from urllib.parse import quote

bucket, _, path = sys.argv[1].removeprefix("gs://").partition("/")
query = f"uploadType=media&name={quote(path, safe='')}"
print(f"https://storage.googleapis.com/upload/storage/v1/b/{quote(bucket)}/o?{query}")
PYTHON
}

# Starts the program that takes the TPU down when a limit is reached, if there is one.
start_watchdog() {
  attribute limits >/dev/null || return 0
  mkdir -p "$BASE"
  attribute watchdog >"$BASE/watchdog.py"
  systemd-run --unit=watchdog --description="tpu-stack limits" --collect \
    --property=Restart=always --property=RestartSec=60 \
    --property=StandardOutput=journal+console --property=StandardError=journal+console \
    --setenv=PYTHONUNBUFFERED=1 "$(command -v python3)" "$BASE/watchdog.py"
}

# Starts a TPU that was stopped because nothing trained.
wake_tpu() {
  if [[ -e "$BASE/watchdog.py" ]]; then
    python3 "$BASE/watchdog.py" wake
  fi
}

# Runs the trainer as a systemd unit: it is started again after a crash, not after wrong input
# (exit code 2), and its output goes to the journal and the serial port.
# Arguments: the TPU for --tpu, then NAME=VALUE of the environment.
start_training() {
  local tpu="$1" bucket job finished setting names
  local -a arguments=() settings=()
  shift
  # For programs that use several slices.
  if names="$(attribute tpu-names)"; then
    set -- "$@" "TPU_NAMES=$names"
  fi
  bucket="$(attribute bucket-url)"
  job="$(attribute training-job)"
  finished="$bucket/jobs/$job/finished"
  start_watchdog
  require_scope
  await_grants
  if object_exists "$finished"; then
    log "the job $job has finished already ($finished); set training.job to run another one"
    return
  fi
  wake_tpu
  mkdir -p "$BASE"
  ensure_tensorflow "$(attribute training-tensorflow)" "$TENSORFLOW_PACKAGE"
  install_training
  write_runner
  attribute training-args >"$BASE/arguments.json"
  mapfile -d '' -t arguments < <(python3 -c '
import json, sys
for argument in json.load(open(sys.argv[1])):
    print(argument, end="\0")' "$BASE/arguments.json")
  for setting in "HOME=${HOME:-/root}" "PYTHONPATH=$PACKAGES" "PYTHONUNBUFFERED=1" "$@"; do
    settings+=("--setenv=$setting")
  done
  log "starting the job $job"
  systemd-run --unit=training --description="tpu-stack job $job" --collect \
    --property=Restart=on-failure --property=RestartSec=10 \
    --property=RestartPreventExitStatus=2 \
    --property=StandardOutput=journal+console --property=StandardError=journal+console \
    "${settings[@]}" \
    /bin/bash "$BASE/run.sh" "$(upload_address "$finished")" \
    "$PYTHON" -m tpu_training train-and-evaluate \
    "--tpu=$tpu" "--tpu-zone=$(attribute tpu-zone)" "--tpu-project=$(attribute tpu-project)" \
    "--data=$bucket/data" "--model-dir=$bucket/jobs/$job" ${arguments[@]+"${arguments[@]}"}
}
