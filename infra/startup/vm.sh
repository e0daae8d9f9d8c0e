# The VM: runs the trainer, which finds the TPU by its name, waits for it and drives it by gRPC.
# shellcheck shell=bash
# shellcheck source=infra/startup/common.sh

readonly TENSORFLOW_PACKAGE="tensorflow-cpu"

# Serves the VM's health for the group that keeps it, from the first connection on: 503 once this
# script has failed, which another VM may not; 200 otherwise. Wrong input, for which the trainer
# stops for good, would stop it on another VM too.
serve_health() {
  local port failed="$BASE/failed"
  port="$(attribute health-port)" || return 0
  mkdir -p "$BASE"
  rm -f "$failed"
  trap '[[ $? == 0 ]] || touch "$BASE/failed"' EXIT
  cat >"$BASE/health.py" <<'PYTHON'
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
    python3 "$BASE/health.py" "$failed" || log "the health of this VM is served already"
}

# Installs Google's Ops Agent if the metadata asks for it, in the background and after all that the
# training needs: apt serves one at a time. A VM without it trains just as well.
install_ops_agent() {
  local url="https://dl.google.com/cloudagents/add-google-cloud-ops-agent-repo.sh"
  if [[ "$(attribute ops-agent || true)" != true ]] ||
    systemctl is-active --quiet google-cloud-ops-agent; then
    return
  fi
  if ! apt-get --version >/dev/null 2>&1; then
    log "no Ops Agent: this image has no apt-get"
    return
  fi
  log "installing the Ops Agent"
  systemd-run --unit=ops-agent-setup --collect /bin/bash -c \
    'curl --silent --show-error --fail --output "$1" "$2" && bash "$1" --also-install' \
    setup "$BASE/ops-agent.sh" "$url" || log "the Ops Agent could not be installed"
}

serve_health

start_training "$(attribute tpu-name)"
install_ops_agent
