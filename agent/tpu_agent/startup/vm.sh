# The VM: runs the trainer, which finds the TPU by its name, waits for it and drives it by gRPC.
# shellcheck shell=bash
# shellcheck source=agent/tpu_agent/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-cpu"

# Serves the VM's health for the group that keeps it, from the first connection on: 503 once this
# script has failed, which another VM may not; 200 otherwise. Wrong input, for which the trainer
# stops for good, would stop it on another VM too.
serve_health() {
  local port failed="$RUN/failed"
  port="$(attribute health-port)" || return 0
  mkdir -p "$RUN"
  rm -f "$failed"
  trap '[[ $? == 0 ]] || touch "$RUN/failed"' EXIT
  cat >"$RUN/health.py" <<'PYTHON'
import os
import socket
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists(sys.argv[1]) else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("", 0), Health, bind_and_activate=False)
server.socket = socket.socket(fileno=3)
server.serve_forever()
PYTHON
  log "serving the health of this VM on port $port"
  systemd-run --unit=health --collect --socket-property="ListenStream=$port" \
    python3 "$RUN/health.py" "$failed" || log "the health of this VM is served already"
}

# Installs Google's Ops Agent if the metadata asks for it, in the background and after all that the
# training needs: apt serves one at a time. A VM without it trains just as well. No script and no
# key is fetched: apt checks the signature of Google's repository with the key that Google's images
# bring along, and takes nothing where there is none.
install_ops_agent() {
  local list="/etc/apt/sources.list.d/google-cloud-ops-agent.list"
  local key="/usr/share/keyrings/cloud.google.gpg" signed="" release
  if [[ "$(attribute ops-agent || true)" != true ]] ||
    systemctl is-active --quiet google-cloud-ops-agent; then
    return
  fi
  if ! apt-get --version >/dev/null 2>&1; then
    log "no Ops Agent: this image has no apt-get"
    return
  fi
  log "installing the Ops Agent"
  release="$(sed --quiet 's/^VERSION_CODENAME=//p' /etc/os-release)"
  [[ ! -e "$key" ]] || signed="[signed-by=$key] "
  echo "deb ${signed}https://packages.cloud.google.com/apt google-cloud-ops-agent-$release-all main" \
    >"$list"
  # Without the list again if it fails, or every later `apt-get update` would fail too.
  # shellcheck disable=SC2016 # The shell of the unit expands it.
  systemd-run --unit=ops-agent-setup --collect --setenv=DEBIAN_FRONTEND=noninteractive \
    /bin/bash -c "$(declare -f log apt_get)"'
      { apt_get update && apt_get install --yes google-cloud-ops-agent; } ||
        { rm "$1"; exit 1; }' setup "$list" || log "the Ops Agent could not be installed"
}

serve_health

if attribute tpu-form >/dev/null; then
  # A TPU on Compute Engine trains on its own machines: the agent recreates them.
  require_scope
  start_agent
else
  start_training "$(attribute tpu-name)" \
    "TPU_TRAINING_NOTICES=$(attribute bucket-url)/notices/$(attribute tpu-name)"
  install_ops_agent
fi
