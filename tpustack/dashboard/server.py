"""Serves the page on this machine alone."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence

import uvicorn

from tpustack.cloud.google import Google
from tpustack.dashboard.app import Application
from tpustack.dashboard.guard import Guard
from tpustack.dashboard.places import Place
from tpustack.errors import TpustackError

_LOOPBACK = "127.0.0.1"
# Streams go on until their reader leaves.
_PATIENCE = 1


def serve(places: Sequence[Place], port: int, say: Callable[[str], None]) -> None:
    """Serve until the process is told to end.

    Args:
        places: where to look.
        port: 0 for any that is free.
        say: gets the address, with the token that opens it.

    Raises:
        TpustackError: the port is taken, or there are no credentials.
    """
    listener = listen(port)
    port, token = listener.getsockname()[1], secrets.token_urlsafe(32)
    app = Guard(Application(places, Google()).asgi, port, token)
    config = uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
        ws="none",
    )
    say(f"http://{_LOOPBACK}:{port}/#token={token}")
    with listener:
        uvicorn.Server(config).run(sockets=[listener])


def listen(port: int) -> socket.socket:
    """Return a socket that only this machine reaches. Raises TpustackError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise TpustackError(
            f"--port={port}: {_LOOPBACK}:{port} can't be had ({error.strerror}). Without --port "
            "any free one is taken"
        ) from None
    return listener
