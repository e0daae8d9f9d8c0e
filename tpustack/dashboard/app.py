"""The dashboard's application: the page's files, its stream, logs, and what its buttons do."""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tpu_agent.jobs.queue import Queue
from tpu_core import paths
from tpu_core.bucket import Item
from tpustack.cloud.google import Google
from tpustack.dashboard.places import Json, Place
from tpustack.dashboard.sources import Source, drift, sources
from tpustack.dashboard.trainings import curves
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import job as jobs
from tpustack.jobs.queue import explained, why_waiting
from tpustack.jobs.vertex import place_again

INDEX = "index.html"
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
SNAPSHOT = "snapshot.json"
_LIVE, _STILL = b'<meta name="source" content="live">', b'<meta name="source" content="%s">'
_SNAPSHOT_AT_ONCE = 8
_MOST_CURVES = 20
"""The newest trainings of each place whose curves go along."""
_LOOK = 1.0
_LINES = "application/x-ndjson"


class Application:
    """What answers the page.

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
                Route(job, self._answer(show)),
                Route(f"{job}/log", self._follow),
                Route(f"{job}/log.txt", self._whole_log),
                Route(f"{job}/stop", self._answer(stop), methods=["POST"]),
                Route(f"{job}/resubmit", self._answer(resubmit, submits=True), methods=["POST"]),
                Route("/api/places/{place}/curves", self._curves),
                Route("/api/places/{place}/drift", self._drift, methods=["POST"]),
                Route("/", _file),
                Route("/{file}", _file),
            ],
            exception_handlers={TpustackError: _explained},
        )

    async def _feed(self, request: Request) -> Response:
        found = await run_sync(sources, tuple(self._places.values()), self._google)
        return StreamingResponse(feed(found), media_type=_LINES)

    def _answer(
        self, what: Callable[..., Json], *, submits: bool = False
    ) -> Callable[[Request], Any]:
        """Return what answers a call about one job; what submits one is told the stack."""

        async def answer(request: Request) -> Response:
            place = self._place(request)
            queue = place.queue(self._google)
            stack = [place.name if place.settings else None] if submits else []

            def work() -> Json:
                with explained(queue):
                    return what(queue, request.path_params["job"], *stack)

            return JSONResponse(await run_sync(work))

        return answer

    async def _follow(self, request: Request) -> Response:
        queue, name = self._queue(request), request.path_params["job"]
        follower = Follower(queue, name, request.query_params.get("behind", ""))
        # A missing job is an answer of its own, not the beginning of a stream.
        first = await run_sync(_look, queue, follower)
        return StreamingResponse(_lines(queue, follower, first), media_type=_LINES)

    async def _whole_log(self, request: Request) -> Response:
        queue, name = self._queue(request), request.path_params["job"]

        def begin() -> None:
            with explained(queue):
                jobs.read_job(queue, name)

        await run_sync(begin)
        return StreamingResponse(jobs.job_log(queue, name), media_type="text/plain")

    async def _curves(self, request: Request) -> Response:
        folder = request.query_params.get("training", "")
        return JSONResponse(await run_sync(curves, self._google, self._place(request), folder))

    async def _drift(self, request: Request) -> Response:
        place = self._place(request)
        return JSONResponse(await run_sync(drift, place, limiter=self._engines))

    def _queue(self, request: Request) -> Queue:
        return self._place(request).queue(self._google)

    def _place(self, request: Request) -> Place:
        """Return the place that a call names. Raises UsageError if there is none with a bucket."""
        name = request.path_params["place"]
        place = self._places.get(name)
        if place is None or not place.bucket:
            raise UsageError(f"the dashboard does not look into {name!r}")
        return place


async def _lines(
    queue: Queue, follower: Follower, messages: Sequence[Mapping[str, Any]]
) -> AsyncIterator[bytes]:
    while True:
        # Writing an empty line shows whether the reader is gone.
        yield b"".join(map(line_of, map(dict, messages))) or b"\n"
        if follower.is_over:
            return
        await anyio.sleep(_LOOK)
        try:
            messages = await run_sync(_look, queue, follower)
        except TpustackError as error:
            yield line_of({"problem": str(error)})
            return


def _look(queue: Queue, follower: Follower) -> list[Json]:
    with explained(queue):
        return follower.look()


async def _file(request: Request) -> Response:
    name = request.path_params.get("file", INDEX)
    content = assets().get(name)
    if content is None:
        return JSONResponse({"problem": "there is no such file"}, HTTPStatus.NOT_FOUND)
    return Response(content, media_type=kind(name))


async def _explained(request: Request, error: Exception) -> Response:
    status = HTTPStatus.BAD_REQUEST if isinstance(error, UsageError) else HTTPStatus.BAD_GATEWAY
    return JSONResponse({"problem": str(error)}, status)


_SOURCES_AT_ONCE = 8
_ALIVE = 10.0
"""Seconds without a change until an empty line shows whether the reader is gone."""


async def feed(followed: Sequence[Source]) -> AsyncIterator[bytes]:
    """Yield a line of JSON for each source at first, and then for each that has changed."""
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    limiter = anyio.CapacityLimiter(_SOURCES_AT_ONCE)
    tasks = [asyncio.create_task(_follow(source, lines, limiter)) for source in followed]
    try:
        while True:
            try:
                yield await asyncio.wait_for(lines.get(), _ALIVE)
            except asyncio.TimeoutError:
                yield b"\n"
    finally:
        for task in tasks:
            task.cancel()


async def _follow(
    source: Source, lines: asyncio.Queue[bytes], limiter: anyio.CapacityLimiter
) -> None:
    before = b""
    while True:
        line = await run_sync(lambda: line_of(source.message()), limiter=limiter)
        if line != before:
            lines.put_nowait(line)
            before = line
        await asyncio.sleep(source.every)


def line_of(message: dict[str, Any]) -> bytes:
    """Return a message as a line of its own."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def show(queue: Queue, name: str) -> Json:
    """Return all that is known of a job, without the values in its environment.

    Raises:
        UsageError: there is no such job.
        GoogleError: the bucket refuses.
    """
    job = jobs.read_job(queue, name)
    document = jobs.job_document(job, queue.store.bucket)
    # They may be tokens, and people show the page to others.
    document["spec"]["env"] = sorted(job.spec.env)
    found = [vars(one) for one in jobs.artifacts_of(queue, name)]
    return {**document, "artifacts": found, "waiting": None if job.is_over else why_waiting(queue)}


def stop(queue: Queue, name: str) -> Json:
    """End a job. Raises as `show` does."""
    job = jobs.stop_job(queue, name)
    return {"name": name, "state": "stopping" if not job.is_over else job.state}


def resubmit(queue: Queue, name: str, stack: str | None) -> Json:
    """Run a job once more; what Vertex AI runs needs its stack. Raises as `show` does."""
    old = jobs.read_job(queue, name)
    if old.spec.vertex and stack is None:
        raise UsageError("Vertex AI runs it: open the dashboard with its stack, not its bucket")
    place = place_again(stack, None, old.spec)
    new = jobs.resubmit_job(queue, old, place)
    return {"name": new.name, "state": new.state}


_MOST_BYTES, _MOST_PIECES = 512 * 1024, 200
"""What one look reads at most; of more, the end."""
_PIECES_AT_ONCE = 8
_PIECE = re.compile(r"/[0-9]{4,9}/[0-9]+$")


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
            GoogleError: the bucket refuses.
        """
        # All of its log is in the bucket before it is said to be over.
        job = jobs.read_job(self._queue, self._name, ask=False)
        items = self._queue.store.items(paths.logs(self._name), behind=self._behind)
        # Other jobs may have written anything there.
        pieces = [one for one in items if _PIECE.search(one.path)]
        found = list(self._texts(pieces))
        if job.is_over:
            self.is_over = True
            found.append({"state": job.state, "code": job.code, "reason": job.reason})
        return found

    def _texts(self, pieces: Sequence[Item]) -> Iterator[Json]:
        kept = last(pieces)
        if left_out := sum(item.size for item in pieces[: len(pieces) - len(kept)]):
            self._decoder = _decoder()
            yield {"skipped": left_out}
        with ThreadPoolExecutor(_PIECES_AT_ONCE) as threads:
            contents = threads.map(lambda item: self._queue.store.read(item.path), kept)
            for item, content in zip(kept, contents, strict=True):
                self._behind = item.path
                yield from self._text(item, content[0] if content else b"")

    def _text(self, item: Item, content: bytes) -> Iterator[Json]:
        number = int(item.path.split("/")[-2])
        if number != self._number:
            self._number, self._decoder = number, _decoder()
            yield {"try": number}
        yield {"text": self._decoder.decode(content), "at": item.path}


def last(pieces: Sequence[Item]) -> Sequence[Item]:
    """Return the last pieces that one look may read, at least one if there are any."""
    total = 0
    for count, item in enumerate(reversed(pieces)):
        total += item.size
        if count and (total > _MOST_BYTES or count >= _MOST_PIECES):
            return pieces[len(pieces) - count :]
    return pieces


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


@cache
def assets() -> dict[str, bytes]:
    """Return the content of each file by its name."""
    folder = files("tpustack.dashboard") / "page"
    return {file.name: file.read_bytes() for file in folder.iterdir() if kind(file.name)}


def kind(name: str) -> str:
    """Return the media type of a file by its name; empty for one that is not of the page."""
    return _KINDS.get(f".{name.rpartition('.')[2]}", "")


def export(places: Sequence[Place], folder: Path) -> Path:
    """Write the page into a folder, and return its first file.

    Logs do not go along, nor do the files of jobs: a website may be public.

    Raises:
        TpustackError: nothing could be read, or the folder can't be written.
    """
    snapshot = take_snapshot(places, Google())
    page = dict(assets())
    page[INDEX] = page[INDEX].replace(_LIVE, _STILL % SNAPSHOT.encode())
    page[SNAPSHOT] = json.dumps(snapshot, separators=(",", ":")).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in page.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise TpustackError(f"--export={folder}: it can't be written: {error.strerror}") from None
    return folder / INDEX


def take_snapshot(places: Sequence[Place], google: Google) -> Json:
    """Return what the page shows now.

    Raises:
        TpustackError: none of the places could be read.
    """
    with ThreadPoolExecutor(_SNAPSHOT_AT_ONCE) as threads:
        messages = list(threads.map(Source.message, sources(places, google)))
    _require_some(messages)
    return {"at": time.time(), "messages": messages, "curves": _curves(places, google, messages)}


def _require_some(messages: Sequence[Json]) -> None:
    problems = [each["problem"] for each in messages if each["place"]]
    if problems and all(problems):
        raise TpustackError("\n".join(dict.fromkeys(problems)))


def _curves(places: Sequence[Place], google: Google, messages: Sequence[Json]) -> Json:
    """Return the curves of each training, by its place and folder."""
    named = {place.name: place for place in places}
    trainings = [
        (message["place"], each["folder"])
        for message in messages
        if message["topic"] == "trainings"
        for each in message["data"][:_MOST_CURVES]
    ]
    return {
        f"{place}/{folder}": curves(google, named[place], folder) for place, folder in trainings
    }
