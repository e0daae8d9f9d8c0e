"""The TPU runtime of a local TPU host: TensorFlow's gRPC server over logical CPU devices.

It is what `python3 -m tensorflow.python.tools.grpc_tpu_worker` is on Google: the wheel that has
that module, tensorflow-tpu, needs a TPU. It reads `TPU_TASK_PORT` alike.
"""

import argparse
import contextlib
import ctypes
import importlib.util
import os
import signal
import socket
import struct
import sys
import time
import types
from pathlib import Path
from typing import Any

_END = {signal.SIGTERM, signal.SIGINT}
_PORT = 8470
# Seconds to wait for a port that clients know, and between two tries.
_PATIENCE = 5.0
_STEP = 0.5
_SO_ATTACH_FILTER = 26
# Classic BPF (linux/filter.h; Documentation/networking/filter.rst of the kernel) as (code, jump if
# true, jump if false, operand): accept packets whose source is 127.0.0.0/8 or ::1. 0x30 and 0x20
# load a byte and a word, 0x74 shifts right, 0x15 compares, 0x06 returns the bytes to keep. Offsets
# from 0xFFF00000 on are those of the network header: IPv4's source is at 12, IPv6's at 8 to 23.
_NET = 0xFFF00000
_LOOPBACK_ONLY = (
    (0x30, 0, 0, _NET),
    (0x74, 0, 0, 4),
    (0x15, 2, 0, 6),
    (0x30, 0, 0, _NET + 12),
    (0x15, 8, 9, 127),
    (0x20, 0, 0, _NET + 8),
    (0x15, 0, 7, 0),
    (0x20, 0, 0, _NET + 12),
    (0x15, 0, 5, 0),
    (0x20, 0, 0, _NET + 16),
    (0x15, 0, 3, 0),
    (0x20, 0, 0, _NET + 20),
    (0x15, 0, 1, 1),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)
_NOTHING = ((0x06, 0, 0, 0),)
_LOOK = 0.5


def main(arguments: list[str]) -> int:
    """Serve until the process is ended.

    `--port` is the wish; when it is taken, any free one serves. `--ready` names a file that gets
    the port. If it has one from an earlier start, clients know that: it is waited for a while.
    While the file `--gate` is there, no client gets in: a firewall is between.
    """
    parser = argparse.ArgumentParser(prog="tpu_worker")
    parser.add_argument("--port", type=int, default=int(os.environ.get("TPU_TASK_PORT") or _PORT))
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--ready", type=Path)
    parser.add_argument("--gate", type=Path)
    options, _ = parser.parse_known_args(arguments)
    # TensorFlow handles SIGTERM itself once a client has connected, and keeps serving. What is
    # blocked here, before it has threads, reaches `sigwait` alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _END)
    known = _read_port(options.ready)
    server, port = _start(known or options.port, options.devices, _PATIENCE if known else 0.0)
    # TensorFlow listens on all interfaces and has no setting for that; a client that reaches it can
    # run any graph. On Linux the kernel drops what comes from elsewhere.
    if sys.platform.startswith("linux"):
        _filter(port, _LOOPBACK_ONLY)
    print(f"gRPC server with {options.devices} devices listening on port {port}", flush=True)
    if options.ready:
        part = options.ready.with_suffix(".part")
        part.write_text(str(port), encoding="ascii")
        part.replace(options.ready)
    _wait(port, options.gate)
    # TensorFlow's threads do not end by themselves.
    os._exit(0 if server else 1)


def _wait(port: int, gate: Path | None) -> None:
    """Wait for the end; until then close and open the port as the gate says."""
    if gate is None or not sys.platform.startswith("linux"):
        signal.sigwait(_END)
        return
    shut = False
    while True:
        if gate.exists() != shut:
            shut = not shut
            _filter(port, _NOTHING if shut else _LOOPBACK_ONLY)
        if signal.sigtimedwait(_END, _LOOK):
            return


def _filter(port: int, instructions: tuple[tuple[int, int, int, int], ...]) -> None:
    """Let the kernel drop what the instructions don't accept, before a connection begins.

    TensorFlow does not hand out its socket, so it is found among this process's descriptors.
    """
    program = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(program)
    attached = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    for descriptor in _listening(port):
        # A copy: the socket object closes its descriptor, and the server's must stay open.
        with socket.socket(fileno=os.dup(descriptor)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)


def _listening(port: int) -> list[int]:
    found = []
    # Most descriptors are no sockets, which an OSError tells.
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as candidate:
            listens = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and candidate.getsockname()[1] == port:
                found.append(int(name))
    return found


def _start(port: int, devices: int, patience: float) -> tuple[Any, int]:
    _without_package_start()
    from tensorflow.core.protobuf import config_pb2, tensorflow_server_pb2
    from tensorflow.python.client import pywrap_tf_session
    from tensorflow.python.framework import errors_impl

    definition = tensorflow_server_pb2.ServerDef(protocol="grpc")
    job = definition.cluster.job.add()
    job.name = definition.job_name = "tpu_worker"
    job.tasks[0] = f"localhost:{port}"
    # A replica's step is small and there are more replicas than processors: with one thread for
    # each device and none to split an operation, eight replicas on two processors are fastest.
    config = config_pb2.ConfigProto(
        device_count={"CPU": devices},
        inter_op_parallelism_threads=devices,
        intra_op_parallelism_threads=max(1, (os.cpu_count() or 1) // devices),
    )
    definition.default_session_config.MergeFrom(config)
    try:
        server = pywrap_tf_session.TF_NewServer(definition.SerializeToString())
    except errors_impl.OpError:
        if port == 0:
            raise
        if patience > 0:
            time.sleep(_STEP)
            return _start(port, devices, patience - _STEP)
        print(f"port {port} is taken; taking another", flush=True)
        return _start(0, devices, 0.0)
    pywrap_tf_session.TF_ServerStart(server)
    target: str = pywrap_tf_session.TF_ServerTarget(server)
    return server, int(target.rpartition(":")[2])


def _without_package_start() -> None:
    # TensorFlow's own __init__ loads Keras and all of the Python API, which a server needs none of
    # and which takes ten times as long as what it needs.
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.submodule_search_locations is None:
        sys.exit("tpu_worker: the interpreter of the local cloud has no TensorFlow")
    package = types.ModuleType("tensorflow")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules.setdefault("tensorflow", package)


def _read_port(ready: Path | None) -> int | None:
    try:
        return int(ready.read_text(encoding="ascii")) if ready else None
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
