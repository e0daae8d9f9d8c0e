"""What `systemctl` and its like are in a local machine: their arguments go to the supervisor."""

from __future__ import annotations

import json
import os
import socket
import sys


def main(program: str, arguments: list[str]) -> int:
    """Send a command to the machine's supervisor, print its answer, return its exit code."""
    request = {
        "program": program,
        "arguments": arguments,
        "path": os.environ.get("PATH", ""),
        "cwd": os.getcwd(),
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
