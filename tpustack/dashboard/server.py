"""The dashboard's server: one page, reached on this machine alone by the holder of the token.

From the outside in: the socket and the guard, the routes, the stream of changes, a job's log.
"""

import asyncio
import codecs
import json
import logging
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
import click
import uvicorn
from anyio.to_thread import run_sync
from starlette import types
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpu_core.bucket import Item
from tpu_core.google import Json
from tpustack import console
from tpustack.cloud.google import Google
from tpustack.dashboard.sources import Place, Source, curves, drift, places, sources
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import job as jobs
from tpustack.jobs.queue import explained, why_waiting
from tpustack.jobs.vertex import place_again

_LOOPBACK = "127.0.0.1"
# Seconds for streams to end, which last until their reader leaves.
_PATIENCE = 1


@click.command("dashboard")
@console.stack("Show this stack.", "all, without --bucket", several=True)
@click.option(
    *("--bucket", "buckets"),
    metavar="gs://BUCKET",
    multiple=True,
    help="Show what is in this bucket, which is enough to read; may be given several times.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Serve on this port; by default on a free one."
)
def dashboard_command(stacks: tuple[str, ...], buckets: tuple[str, ...], port: int | None) -> None:
    """Show stacks, TPUs, jobs, goodput, cost and learning curves on one page, live.

    The page is served on this machine alone, at an address that only this output shows.
    It ends with Ctrl-C, and keeps nothing.
    """
    application = Application(places(stacks, buckets), Google())
    with listen(port or 0) as listener:
        token = secrets.token_urlsafe(32)
        click.echo(f"{address(listener, token)}\nCtrl-C ends it.")
        server(application.asgi, listener, token).run(sockets=[listener])


def server(app: types.ASGIApp, listener: socket.socket, token: str) -> uvicorn.Server:
    """Return what serves an application on a socket to those who know the token."""
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
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    return uvicorn.Server(config)


def address(listener: socket.socket, token: str) -> str:
    """Return the address that opens the page: browsers don't send what follows the #."""
    return f"http://{_LOOPBACK}:{listener.getsockname()[1]}/#token={token}"


def listen(port: int) -> socket.socket:
    """Return a socket that only this machine reaches. Raises TpustackError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Else the port of a dashboard that has just ended is taken for a minute (TIME_WAIT).
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        # From here on connections wait until the server answers.
        listener.listen()
    except OSError as error:
        listener.close()
        raise TpustackError(
            f"--port={port}: {_LOOPBACK}:{port} can't be used ({error.strerror}). Without --port "
            "any free one is used"
        ) from None
    return listener


def _is_error(record: logging.LogRecord) -> bool:
    """Return whether a record is worth printing: streams that end with the server are not."""
    cut = record.exc_info is not None and record.exc_info[0] is asyncio.CancelledError
    return not cut and "timeout graceful shutdown" not in str(record.msg)


# What a browser says of the page that asks; `none` is a person who typed the address.
_OWN = ("same-origin", "none")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
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

    def __init__(self, app: types.ASGIApp, port: int, token: str) -> None:
        self._app = app
        self._hosts = [f"{name}:{port}" for name in (_LOOPBACK, "localhost")]
        self._token = f"Bearer {token}".encode()

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def guarded(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        app = self._app
        if refusal := self._refusal(str(scope["path"]), Headers(scope=scope)):
            status, why = refusal
            app = JSONResponse({"problem": why}, status)
        await app(scope, receive, guarded)

    def _refusal(self, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Return the answer to a request that may not be answered; None for all others."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return HTTPStatus.MISDIRECTED_REQUEST, "the address is not this page's own"
        origin = headers.get("origin")
        is_own = origin is None or origin in [f"http://{host}" for host in self._hosts]
        if not is_own or headers.get("sec-fetch-site", "none") not in _OWN:
            return HTTPStatus.FORBIDDEN, "another site asks"
        given = headers.get("authorization", "").encode()
        if path.startswith("/api/") and not secrets.compare_digest(given, self._token):
            why = "the token is missing or an old one: open the address that the command printed"
            return HTTPStatus.UNAUTHORIZED, why
        return None


# --- The routes.

_INDEX = "index.html"
_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_LINES = "application/x-ndjson"
# Seconds between two looks at a log that is open.
_LOOK = 1.0


class Application:
    """What answers the page.

    Everything that calls Google or the bucket runs in a thread: the event loop only waits.

    Args:
        places: where to look.
        google: the caller's access to Google.
    """

    def __init__(self, places: Sequence[Place], google: Google) -> None:
        self._places = {place.name: place for place in places}
        self._google = google
        # An engine takes some 300 MB.
        self._engines = anyio.CapacityLimiter(1)
        job = "/api/places/{place}/jobs/{job}"
        self.asgi = Starlette(
            routes=[
                Route("/api/feed", self._feed),
                Route(job, self._about_job(_show)),
                Route(f"{job}/log", self._follow),
                Route(f"{job}/log.txt", self._whole_log),
                Route(f"{job}/stop", self._about_job(_stop), methods=["POST"]),
                Route(f"{job}/resubmit", self._about_job(_resubmit), methods=["POST"]),
                Route("/api/places/{place}/curves", self._curves),
                Route("/api/places/{place}/drift", self._drift, methods=["POST"]),
                Route("/", _file),
                Route("/{file}", _file),
            ],
            exception_handlers={TpustackError: _explained},
        )

    async def _feed(self, request: Request) -> Response:
        # Each open page has sources of its own, which remember what that page knows.
        found = await run_sync(sources, tuple(self._places.values()), self._google)
        return StreamingResponse(feed(found), media_type=_LINES)

    def _about_job(self, what: Callable[[Queue, str, str | None], Json]) -> Callable[..., Any]:
        """Return what answers a call about one job, with its stack, if there is one."""

        async def answer(request: Request) -> Response:
            place = self._place(request)
            queue = place.queue(self._google)
            stack = place.name if place.settings else None

            def work() -> Json:
                with explained(queue):
                    return what(queue, request.path_params["job"], stack)

            return JSONResponse(await run_sync(work))

        return answer

    async def _follow(self, request: Request) -> Response:
        queue, name = self._place(request).queue(self._google), request.path_params["job"]
        follower = Follower(queue, name, request.query_params.get("behind", ""))
        # A missing job is an answer of its own, not the beginning of a stream.
        first = await run_sync(follower.look)
        return StreamingResponse(_stream(follower, first), media_type=_LINES)

    async def _whole_log(self, request: Request) -> Response:
        queue, name = self._place(request).queue(self._google), request.path_params["job"]

        def begin() -> None:
            with explained(queue):
                jobs.read_job(queue, name)

        await run_sync(begin)
        return StreamingResponse(jobs.job_log(queue, name), media_type="text/plain")

    async def _curves(self, request: Request) -> Response:
        folder, bucket = request.query_params.get("training", ""), self._place(request).bucket
        return JSONResponse(await run_sync(curves, self._google, bucket, folder))

    async def _drift(self, request: Request) -> Response:
        place = self._place(request)
        return JSONResponse(await run_sync(drift, place, limiter=self._engines))

    def _place(self, request: Request) -> Place:
        """Return the place that a call names. Raises UsageError if there is none with a bucket."""
        name = request.path_params["place"]
        place = self._places.get(name)
        if place is None or not place.bucket:
            raise UsageError(f"the dashboard does not look into {name!r}")
        return place


async def _file(request: Request) -> Response:
    name = request.path_params.get("file", _INDEX)
    content = assets().get(name)
    if content is None:
        return JSONResponse({"problem": "there is no such file"}, HTTPStatus.NOT_FOUND)
    return Response(content, media_type=_KINDS[Path(name).suffix])


@cache
def assets() -> dict[str, bytes]:
    """Return the content of each file of the page by its name: no other file can be asked for."""
    folder = files("tpustack.dashboard") / "page"
    return {
        file.name: file.read_bytes()
        for file in folder.iterdir()
        if Path(file.name).suffix in _KINDS
    }


async def _explained(request: Request, error: Exception) -> Response:
    status = HTTPStatus.BAD_REQUEST if isinstance(error, UsageError) else HTTPStatus.BAD_GATEWAY
    return JSONResponse({"problem": str(error)}, status)


def _show(queue: Queue, name: str, stack: str | None) -> Json:
    """Return all that is known of a job, without the values in its environment."""
    job = jobs.read_job(queue, name)
    document = jobs.job_document(job, queue.store.bucket)
    # They may be tokens, and people show the page to others.
    document["spec"]["env"] = sorted(job.spec.env)
    found = [vars(one) for one in jobs.artifacts_of(queue, name)]
    return {**document, "artifacts": found, "waiting": None if job.is_over else why_waiting(queue)}


def _stop(queue: Queue, name: str, stack: str | None) -> Json:
    job = jobs.stop_job(queue, name)
    return {"name": name, "state": "stopping" if not job.is_over else job.state}


def _resubmit(queue: Queue, name: str, stack: str | None) -> Json:
    # The stack's settings say as whom Vertex AI runs it; others may have written the record.
    old = jobs.read_job(queue, name)
    if old.spec.vertex and stack is None:
        raise UsageError("Vertex AI runs it: open the dashboard with its stack, not its bucket")
    new = jobs.resubmit_job(queue, old, place_again(stack, None, old.spec))
    return {"name": new.name, "state": new.state}


# --- The stream of changes.

_SOURCES_AT_ONCE = 8
# Seconds without a change until an empty line shows whether the reader is gone.
_ALIVE = 10.0


async def feed(followed: Sequence[Source]) -> AsyncIterator[bytes]:
    """Yield a line of JSON for each source at first, and then for each that has changed."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    limiter = anyio.CapacityLimiter(_SOURCES_AT_ONCE)

    async def follow(source: Source) -> None:
        before = b""
        while True:
            line = await run_sync(lambda: _line_of(source.message()), limiter=limiter)
            if line != before:
                lines.put_nowait(line)
                before = line
            await asyncio.sleep(source.every)

    tasks = [asyncio.create_task(follow(source)) for source in followed]
    try:
        while True:
            try:
                yield await asyncio.wait_for(lines.get(), _ALIVE)
            except asyncio.TimeoutError:
                yield b"\n"
    finally:
        for task in tasks:
            task.cancel()


def _line_of(message: Json) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


# --- A job's log.

# What one look reads at most, in bytes and pieces; of more, the end.
_MOST_BYTES, _MOST_PIECES = 512 * 1024, 200
_PIECES_AT_ONCE = 8
_PIECE = re.compile(r"/[0-9]{4,9}/[0-9]+$")


async def _stream(follower: "Follower", messages: Sequence[Json]) -> AsyncIterator[bytes]:
    while True:
        # Writing an empty line shows whether the reader is gone.
        yield b"".join(map(_line_of, messages)) or b"\n"
        if follower.is_over:
            return
        await anyio.sleep(_LOOK)
        try:
            messages = await run_sync(follower.look)
        except TpustackError as error:
            yield _line_of({"problem": str(error)})
            return


class Follower:
    """Reads a job's log for a page: its end first, then what is added, never more than fits.

    Args:
        queue: where the job is.
        name: the job.
        behind: the last piece that was read before; empty for none.
    """

    def __init__(self, queue: Queue, name: str, behind: str = "") -> None:
        self._queue, self._name, self._behind = queue, name, behind
        self._number = 0
        self._decoder = _decoder()
        self.is_over = False

    def look(self) -> list[Json]:
        """Return what is new.

        An object has `skipped` (bytes that are left out), `try` (its number), `text` and `at` (the
        piece), or `state` and `code` of a job that is over.

        Raises:
            UsageError: there is no such job.
            TpustackError: the bucket refuses.
        """
        with explained(self._queue):
            # The runner writes the log's last piece before the job's end: so the end is read first.
            job = jobs.read_job(self._queue, self._name, ask=False)
            items = self._queue.store.items(paths.logs(self._name), behind=self._behind)
            # Other jobs may have written anything there.
            found = list(self._texts([one for one in items if _PIECE.search(one.path)]))
        if job.is_over:
            self.is_over = True
            found.append({"state": job.state, "code": job.code, "reason": job.reason})
        return found

    def _texts(self, pieces: Sequence[Item]) -> Iterator[Json]:
        kept = _last(pieces)
        if left_out := sum(item.size for item in pieces[: len(pieces) - len(kept)]):
            self._decoder = _decoder()
            yield {"skipped": left_out}
        with ThreadPoolExecutor(_PIECES_AT_ONCE) as threads:
            contents = threads.map(lambda item: self._queue.store.read(item.path), kept)
            for item, content in zip(kept, contents, strict=True):
                self._behind = item.path
                number = int(item.path.split("/")[-2])
                if number != self._number:
                    self._number, self._decoder = number, _decoder()
                    yield {"try": number}
                text = self._decoder.decode(content[0] if content else b"")
                yield {"text": text, "at": item.path}


def _last(pieces: Sequence[Item]) -> Sequence[Item]:
    """Return the last pieces that one look may read, at least one if there are any."""
    total = 0
    for count, item in enumerate(reversed(pieces)):
        total += item.size
        if count and (total > _MOST_BYTES or count >= _MOST_PIECES):
            return pieces[len(pieces) - count :]
    return pieces


def _decoder() -> codecs.IncrementalDecoder:
    # A character may be in two pieces, but not in two tries.
    return codecs.getincrementaldecoder("utf-8")(errors="replace")
