"""The application: the page's files, the stream of all it shows, and what its buttons do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tpu_agent.jobs.queue import Queue
from tpustack.cloud.google import Google
from tpustack.dashboard import jobs, stacks
from tpustack.dashboard.assets import INDEX, assets, kind
from tpustack.dashboard.curves import curves
from tpustack.dashboard.feed import feed, line_of
from tpustack.dashboard.log import Follower
from tpustack.dashboard.places import Place
from tpustack.dashboard.sources import sources
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import waiting
from tpustack.jobs.place import explained

Json = dict[str, Any]
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
                Route(job, self._answer(jobs.shown)),
                Route(f"{job}/log", self._follow),
                Route(f"{job}/log.txt", self._whole_log),
                Route(f"{job}/stop", self._answer(jobs.stop), methods=["POST"]),
                Route(
                    f"{job}/resubmit", self._answer(jobs.resubmit, submits=True), methods=["POST"]
                ),
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
        # A job that is not there is an answer of its own, not the beginning of a stream.
        first = await run_sync(_look, queue, follower)
        return StreamingResponse(_lines(queue, follower, first), media_type=_LINES)

    async def _whole_log(self, request: Request) -> Response:
        queue, name = self._queue(request), request.path_params["job"]

        def begin() -> None:
            with explained(queue):
                waiting.read(queue, name)

        await run_sync(begin)
        return StreamingResponse(waiting.log(queue, name), media_type="text/plain")

    async def _curves(self, request: Request) -> Response:
        folder = request.query_params.get("training", "")
        return JSONResponse(await run_sync(curves, self._google, self._place(request), folder))

    async def _drift(self, request: Request) -> Response:
        place = self._place(request)
        return JSONResponse(await run_sync(stacks.drift, place, limiter=self._engines))

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
        # An empty line shows who is gone.
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
