"""Serves the page on this machine alone."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Sequence

import uvicorn
from starlette.types import ASGIApp

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
    google = Google()
    with listen(port) as listener:
        token = secrets.token_urlsafe(32)
        app = Application(places, google).asgi
        say(address(listener, token))
        server(app, listener, token).run(sockets=[listener])


def server(app: ASGIApp, listener: socket.socket, token: str) -> uvicorn.Server:
    """Return what serves an application on a socket to who knows the token."""
    config = uvicorn.Config(
        Guard(app, listener.getsockname()[1], token),
        access_log=False,
        lifespan="off",
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
        ws="none",
    )
    # The configuration makes the logger anew.
    logging.getLogger("uvicorn.error").addFilter(_is_told)
    return uvicorn.Server(config)


def address(listener: socket.socket, token: str) -> str:
    """Return the address that opens the page."""
    return f"http://{_LOOPBACK}:{listener.getsockname()[1]}/#token={token}"


def listen(port: int) -> socket.socket:
    """Return a socket that only this machine reaches. Raises TpustackError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        # From here on nobody is refused, although it takes a moment until somebody answers.
        listener.listen()
    except OSError as error:
        listener.close()
        raise TpustackError(
            f"--port={port}: {_LOOPBACK}:{port} can't be had ({error.strerror}). Without --port "
            "any free one is taken"
        ) from None
    return listener


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether somebody should hear of it: that streams are cut at the end is no error."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and "timeout graceful shutdown" not in str(record.msg)
