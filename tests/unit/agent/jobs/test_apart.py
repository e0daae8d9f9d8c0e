"""The kernel keeps a job's user from the machine's metadata server: in a network of its own.

Only root may try, on a machine with nft; others skip it. Users and packet filter of this machine
stay as they are.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = ("nft", "ip", "unshare", "setpriv", "useradd", "curl")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or os.geteuid() != 0
    or not all(map(shutil.which, PROGRAMS)),
    reason="takes root on Linux with nft",
)
SCRIPT = """
set -e
mount --make-rprivate /
cp --archive /etc "$1/etc"
mount --bind "$1/etc" /etc
ip link set lo up
ip address add 169.254.169.254/32 dev lo
exec "$2" -c "$3"
"""
INSIDE = """
import json, os, shutil, subprocess, tempfile, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tpu_agent.jobs.identity import USER, Identity, kill_all
from tpu_agent.jobs.identity import JobMetadata

class Real(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"the machine's")
    def log_message(self, *_): pass

for port in (80, 443):
    server = ThreadingHTTPServer(("169.254.169.254", port), Real)
    threading.Thread(target=server.serve_forever, daemon=True).start()
given = {"accessToken": "the jobs'", "expireTime": "2999-01-01T00:00:00Z"}
who = Identity(JobMetadata("j@p", lambda *_: (200, given), lambda path: ("", "")))
for _ in range(2):  # A second try finds the first one's user and table.
    who.enter(lambda: None)

def told(port, command=list):
    url = f"http://169.254.169.254:{port}/computeMetadata/v1/instance/service-accounts/default/token"
    curl = ["curl", "--silent", "--noproxy", "*", "--header", "Metadata-Flavor: Google", url]
    return subprocess.run(command(curl), capture_output=True, text=True).stdout

def said(*words):
    return subprocess.run(who.command(words), capture_output=True, text=True).stdout.strip()

sleeper = subprocess.Popen(who.command(["sleep", "600"]), env={})
until = time.monotonic() + 30
while subprocess.run(["pgrep", "-u", USER], stdout=subprocess.DEVNULL).returncode:
    assert time.monotonic() < until
kill_all()

top, before = tempfile.mkdtemp(), os.stat("/etc/shadow").st_mode
os.chmod(top, 0o755)
os.mkdir(f"{top}/kept")
who.own([f"{top}/kept"])
said("sh", "-c", f"cd {top}/kept && cp /bin/true run && mkdir -m 700 own && "
     "ln -s /etc/shadow link && chmod 4777 run .")
who.take(f"{top}/kept")
changes = "touch new own/new; echo >run; rm -rf own run; chmod 777 run"
kept = said("sh", "-c", f"cd {top}/kept && ls own && ./run && {changes}; ls").split()
mode = oct(os.stat(f"{top}/kept/run").st_mode)
shadow = os.stat("/etc/shadow").st_mode == before
shutil.rmtree(top)
print(json.dumps({
    "root": [told(80), told(443)],
    "job": [json.loads(told(80, who.command))["access_token"], told(443, who.command)],
    "who": said("id", "--name", "--user", ),
    "groups": said("id", "--name", "--groups"),
    "shadow": said("cat", "/etc/shadow"),
    "kept": kept,
    "mode": mode,
    "shadow's": shadow,
    "sleeper": sleeper.wait(10),
}))
"""


def test_the_user_gets_the_jobs_token_and_neither_the_machines_nor_root(tmp_path: Path) -> None:
    command = ["unshare", "--net", "--mount", "sh", "-c", SCRIPT, "sh", str(tmp_path)]
    done = subprocess.run(
        [*command, sys.executable, INSIDE], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "root": ["the machine's", "the machine's"],
        "job": ["the jobs'", ""],
        "who": "tpu-job",
        "groups": "tpu-job",
        "shadow": "",
        # What the agent takes back, the user reads and never changes.
        "kept": ["link", "own", "run"],
        "mode": "0o100755",
        "shadow's": True,
        "sleeper": -9,
    }
