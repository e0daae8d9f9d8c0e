"""`tpu-training serve`: answer TensorFlow Serving's REST requests from a SavedModel."""

import argparse
import ipaddress
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command
from tpu_training.errors import InputError

# TensorFlow Serving's REST port.
_PORT = 8501
LOOPBACK = str(ipaddress.IPv4Address(socket.INADDR_LOOPBACK))


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "serve",
        _build,
        help="answer TensorFlow Serving's REST requests from a SavedModel",
        description="Serve an exported SavedModel over TensorFlow Serving's REST API: POST "
        "/v1/models/NAME:predict, GET /v1/models/NAME and /v1/models/NAME/metadata.",
    )
    parser.add_argument(
        "--saved-model", required=True, help="directory that `tpu-training export` wrote"
    )
    parser.add_argument("--name", default="model", help="the model's name in the URL (model)")
    parser.add_argument(
        "--host", help="address to listen on (default: reachable from this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=_PORT, help=f"port; 0 chooses a free one ({_PORT})"
    )


def _build(known: argparse.Namespace) -> Command:
    if not 0 <= known.port < 65536:
        raise InputError(f"--port={known.port}: expected 0 to 65535")
    return partial(_serve, known.saved_model, known.name, known.host, known.port)


def _serve(saved_model: str, name: str, host: str | None, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    host = host or LOOPBACK
    # Before TensorFlow takes seconds to load.
    with _named(host, port), socket.create_server((host, port)):
        pass
    from tpu_training.serving.prediction import Predictor
    from tpu_training.serving.server import RestApi, create_server

    predictor = Predictor(saved_model)
    with _named(host, port):
        server = create_server(RestApi(name, predictor), host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        print(
            f"serving {name} version {predictor.version} at "
            f"http://{host}:{server.server_port}/v1/models/{name}",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("serving ended", flush=True)
    return 0


@contextmanager
def _named(host: str, port: int) -> Iterator[None]:
    """Turn what the system says of an address into wrong input."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--host={host} --port={port}: {error.strerror or error}") from error
