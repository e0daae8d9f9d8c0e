"""Programs of a machine's image: `systemctl` and its like, and Google's start-up script runner.

They start without `site` and import late what few of them need, since scripts call them often.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

_SUCCESS = "exit status 0"


def command(program: str, arguments: list[str]) -> int:
    """Send a command to the machine's supervisor, print its answer, return its exit code.

    The program itself does nothing: units belong to the machine's first process, which also
    outlives it.
    """
    request = {
        "program": program,
        "arguments": arguments,
        "path": os.environ.get("PATH", ""),
    }
    # The relative name keeps the socket's address short enough for every system.
    os.chdir(os.path.join(os.environ["LOCALCLOUD_MACHINE"], "run"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("control")
        connection.sendall(json.dumps(request).encode() + b"\n")
        received = b""
        while data := connection.recv(1 << 16):
            received += data
    if not received:
        print(f"{program}: the machine is going down", file=sys.stderr)
        return 1
    answer = json.loads(received)
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    return int(answer["code"])


def run_scripts(arguments: list[str]) -> int:
    """Run the metadata's script of one kind, `startup` or `shutdown`.

    It prints what Google's guest agent prints, so that the serial port reads the same.
    """
    kind = arguments[0]
    key = f"{kind}-script"
    _say(f"Starting {kind} scripts (version local).")
    if (_metadata(f"attributes/{key}-url") or "").strip():
        _say(f"{key}-url: a local machine fetches no scripts")
    script = _metadata(f"attributes/{key}") or ""
    if script.strip():
        _say(f"Found {key} in metadata.")
        ended = _run(key, script)
        # As the guest agent's google_metadata_script_runner/main.go words it.
        failed = f'Script "{key}" failed with error: {ended}'
        _say(f"{key} {ended}" if ended == _SUCCESS else failed)
    else:
        _say(f"No {kind} scripts to run.")
    _say(f"Finished running {kind} scripts.")
    return 0


def _run(key: str, script: str) -> str:
    """Run a script's text; how it ended, as Go's os/exec words it."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="metadata-scripts") as folder:
        path = Path(folder, key)
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
        process = subprocess.Popen(
            ["bash", "-c", '"$0"', str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            _say(f"{key}: {text}")
        code = process.wait()
    return f"exit status {code}" if code >= 0 else f"signal: {-code}"


def _metadata(path: str) -> str | None:
    """Return an entry below `instance/`; None where there is none."""
    import http.client

    connection = http.client.HTTPConnection(os.environ["GCE_METADATA_HOST"], timeout=30)
    with contextlib.closing(connection):
        headers = {"Metadata-Flavor": "Google"}
        connection.request("GET", f"/computeMetadata/v1/instance/{path}", headers=headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8")
        return text if response.status == 200 else None


def _say(text: str) -> None:
    # At once: the serial port is what people watch while a script runs.
    print(text, flush=True)
