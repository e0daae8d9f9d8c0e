"""The local cloud: start, calls of one client, memory, and objects against fake-gcs-server.

The last is a ratio where that is on PATH: `go install github.com/fsouza/fake-gcs-server@v1.56.1`.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from bench.measure import Result, in_turn
from tests.calls import HOST, MIB, call, connect, objects
from tests.sandbox import running, session
from tpustack.local import LocalCloudCommand

_WARM_UP, _BUCKETS, _RESOURCES, _OBJECTS = 100, 1000, 1000, 15
_CREATE = ("POST", "?project=tpu-stack-local")
_STEPS = (*_CREATE, '{"name": "bench"}'), ("GET", "/bench", ""), ("DELETE", "/bench", "")


def measure_cloud() -> list[Result]:
    """A process of its own, and a client on one connection."""
    with tempfile.TemporaryDirectory() as folder:
        cloud, began = LocalCloudCommand(Path(folder) / "cloud"), time.perf_counter()
        with running(cloud):
            ready, status = time.perf_counter() - began, cloud.status()
            token = str(session(cloud).headers["Authorization"])
            client = connect(status["port"], HOST)
            for _ in range(_WARM_UP):
                [call(client, token, *step) for step in _STEPS]
            took = sorted(call(client, token, *step) for _ in range(_BUCKETS) for step in _STEPS)
            for number in range(_RESOURCES):
                call(client, token, *_CREATE, f'{{"name": "bench-{number}"}}')
            memory = psutil.Process(status["pid"]).memory_info().rss / MIB
            return [
                Result("cloud: ready", ready, "s", 1.0),
                Result("cloud: create, get, delete", len(took) / sum(took), "1/s", 2000, "higher"),
                Result("cloud: p99 of a call", took[len(took) * 99 // 100] * 1e3, "ms", 5.0),
                Result(f"cloud: memory with {_RESOURCES} resources", memory, "MiB", 100),
                _against_fake(objects(client, token), Path(folder)),
            ]


def _against_fake(ours: Callable[[], float], folder: Path) -> Result:
    """Both in turn, over TLS and to disk; our own time alone where the other is missing."""
    name = "cloud: an object of 1 MiB put and got"
    if shutil.which("fake-gcs-server") is None:
        return Result(f"{name} (fake-gcs-server is not installed)", ours(), "s")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["fake-gcs-server", "-scheme", "https", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-filesystem-root", str(folder / "fake")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as process:
        try:
            took = in_turn(ours, objects(connect(port)), _OBJECTS)
        finally:
            process.kill()
    return Result(f"{name}, against fake-gcs-server", took.ratio, "ratio", 1.0)
