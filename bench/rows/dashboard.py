"""The dashboard in a real browser: fifty stacks with a thousand jobs, and a fast log.

Where no browser is installed, only what the server needs for the same is measured.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import requests
from starlette.types import ASGIApp

from bench.browser import Page, browsing, find_browser
from bench.result import Result
from bench.sandbox import PROJECT, session
from infra.names import names_of
from infra.settings.parse import parse
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core import paths
from tpustack.cloud.google import Google
from tpustack.cloud.local import LocalCloudCommand
from tpustack.dashboard.app import Application
from tpustack.dashboard.places import Place
from tpustack.dashboard.server import address, listen, server

_STACKS, _JOBS, _LINES, _SECONDS = 50, 1000, 1000, 10
_TOKEN = "the-token"
_BUCKETS = "https://storage.googleapis.com/storage/v1/b"
_ALL = (
    f"document.querySelectorAll('#stacks-rows tr').length === {_STACKS} && "
    f"document.querySelector('#jobs-count').textContent.includes('{_JOBS + 1} in all')"
)
# Notes when all is there, and how long each frame takes from then on.
_WATCH = f"""(() => {{
  window.all = null; window.longest = 0; let last = 0;
  const frame = (now) => {{
    if (window.all === null && {_ALL}) window.all = now;
    if (last) window.longest = Math.max(window.longest, now - last);
    last = now; requestAnimationFrame(frame);
  }};
  requestAnimationFrame(frame);
}})()"""


def measure() -> list[Result]:
    """Both on a local cloud in a process of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCloudCommand(Path(folder) / "cloud").running() as cloud,
    ):
        google = Google(session(cloud))
        places = [_place(f"team-{number}") for number in range(_STACKS)]
        _fill(places, google, session(cloud))
        with serving(Application(places, google).asgi, _TOKEN) as url:
            if find_browser() is None:
                return _at_the_server(url)
            with browsing() as page:
                return [*_first_paint(page, url), *_fast_log(page, places[0].queue(google))]


def _place(name: str) -> Place:
    settings = parse({**PROJECT, "tpu-stack:zone": "us-central1-b"}, name)
    return Place(name, names_of(settings, name).bucket, settings)


def _fill(places: list[Place], google: Google, client: requests.Session) -> None:
    for place in places:
        body = {"name": place.bucket, "location": "US-CENTRAL1"}
        query = {"project": PROJECT["gcp:project"]}
        client.post(_BUCKETS, params=query, json=body, timeout=60).raise_for_status()

    def add(number: int) -> None:
        queue = places[number % len(places)].queue(google)
        queue.add(Job(f"job-{number}", str(number), Spec(f"python main.py {number}"), time.time()))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(_JOBS)))
    queue = places[0].queue(google)
    queue.add(Job("writes", "writes", Spec("yes"), time.time()))
    queue.change("writes", lambda job: job.started("1", "vm", "tpu", time.time()))


@contextmanager
def serving(app: ASGIApp, token: str) -> Iterator[str]:
    """Serve on a port of this machine, and give the address that opens the page."""
    with listen(0) as listener:
        running = server(app, listener, token)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address(listener, token)
        finally:
            running.should_exit = True
            thread.join()


def _first_paint(page: Page, url: str) -> list[Result]:
    page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    page.open(url)
    page.wait("window.all")
    paint = page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    stacks = f"dashboard: first paint with {_STACKS} stacks and {_JOBS} jobs"
    return [
        Result(stacks, paint / 1000, "s", goal=1.0),
        Result("dashboard: all of them on the page", page.value("window.all") / 1000, "s"),
    ]


def _fast_log(page: Page, queue: Queue) -> list[Result]:
    """A thousand lines a second for ten seconds, in pieces of a second, as machines write them."""
    page.value("document.querySelector('#jobs-rows button').click()")
    page.wait("document.querySelector('#job-title').textContent === 'writes'")
    page.value("window.longest = 0")
    offset, delays, began = 0, list[float](), time.monotonic()
    for number in range(_SECONDS):
        last = f"line {(number + 1) * _LINES - 1}."
        lines = (f"line {number * _LINES + each}." for each in range(_LINES))
        text = ("\n".join(lines) + "\n").encode()
        queue.store.write(paths.piece("writes", 1, offset), text)
        offset, written = offset + len(text), time.monotonic()
        page.wait(f"document.querySelector('#log').textContent.includes('{last}')")
        delays.append(time.monotonic() - written)
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
    shown = page.value("document.querySelector('#log').textContent.split('line ').length - 1")
    return [
        Result(f"dashboard: a line of {_LINES} a second is seen after", max(delays), "s", goal=5.0),
        Result("dashboard: longest frame meanwhile", page.value("window.longest"), "ms", goal=250),
        Result("dashboard: lines in the page", shown, "lines", goal=2250),
    ]


def _at_the_server(url: str) -> list[Result]:
    """What a browser would wait for: the page's files, then the stream's first messages."""
    root = url.partition("#")[0]
    began = time.perf_counter()
    requests.get(root, timeout=60).raise_for_status()
    files = time.perf_counter() - began
    headers = {"Authorization": f"Bearer {_TOKEN}"}
    messages = count()
    with requests.get(f"{root}api/feed", headers=headers, stream=True, timeout=60) as stream:
        lines = (line for line in stream.iter_lines() if b'"topic":"jobs"' in line)
        next(line for line in lines if next(messages) == _STACKS - 1)
    whole = time.perf_counter() - began
    return [
        Result("dashboard: the page's first file (no browser is installed)", files, "s", goal=1.0),
        Result("dashboard: all jobs from the server", whole, "s"),
    ]
