"""Serves the page on this machine alone, to the holder of the token."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tpustack.cloud.google import Google
from tpustack.dashboard.app import Application
from tpustack.dashboard.places import Place
from tpustack.errors import TpustackError

_LOOPBACK = "127.0.0.1"
# Seconds for streams to end, which last until their reader leaves.
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
        # Its own configuration would close every handler that the process has.
        log_config=None,
        log_level="error",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_PATIENCE,
        ws="none",
    )
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
        # From here on connections wait until the server answers.
        listener.listen()
    except OSError as error:
        listener.close()
        raise TpustackError(
            f"--port={port}: {_LOOPBACK}:{port} can't be had ({error.strerror}). Without --port "
            "any free one is taken"
        ) from None
    return listener


def _is_told(record: logging.LogRecord) -> bool:
    """Return whether a record is worth printing: streams cut at the end are no error."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and "timeout graceful shutdown" not in str(record.msg)


API = "/api/"
_NAMES = ("127.0.0.1", "localhost")
_SCHEME = "Bearer "
# What a browser says of the page that asks; `none` is a person who typed the address.
_OWN = ("same-origin", "none")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Lets only the page itself reach an application: no other machine, site or person.

    Another site's name that resolves to 127.0.0.1 (DNS rebinding) comes with that name as its Host;
    a page of another site comes with its own Origin. Neither knows the token, which travels in a
    header of its own: a browser sends no such header to another site without asking first, and
    gets no answer here. There are no cookies.

    Args:
        app: what is behind it.
        port: the one on which it is reached.
        token: what the page sends with each call.
    """

    def __init__(self, app: ASGIApp, port: int, token: str) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}" for name in _NAMES)
        self._token = f"{_SCHEME}{token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(str(scope["path"]), Headers(scope=scope))
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, path: str, headers: Headers) -> ASGIApp | None:
        """Return the answer to who may not ask; None for who may."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return _refused(HTTPStatus.MISDIRECTED_REQUEST, "the address is not this page's own")
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin):
            return _refused(HTTPStatus.FORBIDDEN, "another site asks")
        if headers.get("sec-fetch-site", "none") not in _OWN:
            return _refused(HTTPStatus.FORBIDDEN, "another site asks")
        given = headers.get("authorization", "").encode()
        if path.startswith(API) and not secrets.compare_digest(given, self._token):
            said = "the token is missing or an old one: open the address that the command printed"
            return _refused(HTTPStatus.UNAUTHORIZED, said)
        return None

    def _is_own(self, origin: str) -> bool:
        return any(origin == f"http://{host}" for host in self._hosts)


def _refused(status: HTTPStatus, said: str) -> ASGIApp:
    return JSONResponse({"problem": said}, status)
