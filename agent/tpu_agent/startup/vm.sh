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

serve_health

start_training "$(attribute tpu-name)" \
  "TPU_TRAINING_NOTICES=$(attribute bucket-url)/notices/$(attribute tpu-name)"
