"""The local cloud: its first answer, how soon a job runs, a long queue, many kills, a dashboard."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psutil
import requests

from bench.measure import Result, in_turn
from tests.browser import Page, browsing, find_browser, serving
from tests.integration.installed import first_demos
from tests.patience import PATIENCE, until
from tests.sandbox import PROJECT, make_project, make_trainer, running, session, write_stack
from tests.wheels import build
from tpu_agent.jobs.queue import QUEUED, RUNNING, Job, Queue, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack.cloud.google import Google
from tpustack.dashboard.server import Application
from tpustack.dashboard.sources import Place
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.jobs.job import job_log
from tpustack.local import LocalCloudCommand

_SUBMITS, _QUEUED, _SHORT = 5, 1000, 100
_RESET = (
    "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-b/"
    "instances/tpu-stack-local-vm/reset"
)
# One kill in so many is the machine's.
_RESETS = 8
_LIFE = (2.0, 8.0)


@dataclass(frozen=True)
class Site:
    """A stack that runs jobs."""

    cloud: LocalCloudCommand
    google: requests.Session
    queue: Queue

    @property
    def url(self) -> str:
        """The bucket."""
        return f"gs://{self.queue.store.bucket}"

    def command(self, verb: str, *arguments: str) -> None:
        """Run `tpustack job` as a person does."""
        command = [sys.executable, "-m", "tpustack", "job", verb, *arguments, "--bucket", self.url]
        environment = {**os.environ, **self.cloud.environment()}
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)

    def runners(self) -> Iterator[psutil.Process]:
        """The agent's process on this stack's machine."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words[-1:] == ["jobs"] and any(str(self.cloud.home) in word for word in words):
                    yield process

    def waiting(self) -> int:
        """How many jobs have not ended."""
        states = [job.get("state") for job in self.queue.summaries().values()]
        return sum(state in (QUEUED, RUNNING) for state in states)


def measure_jobs() -> list[Result]:
    """All three on one stack, whose machine runs and has done a job before."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with running(LocalCloudCommand(folder / "cloud")) as cloud:
            site = _deployed(folder, cloud)
            return [*_latency(site), *_kills(site), *_long_queue(site)]


def _deployed(folder: Path, cloud: LocalCloudCommand, **settings: Any) -> Site:
    project = make_project(folder)
    write_stack(project, make_trainer(folder), jobs={"enabled": True}, **settings)
    environment = toolchain.environment(toolchain.find(), folder / "state") | cloud.environment()
    engine = Backend(environment, project).select("local")
    engine.up(lambda _: None)
    google, outputs = session(cloud), engine.outputs()
    store = Bucket(str(outputs["bucket_name"]), Google(google).exchange)
    return Site(cloud, google, Queue(store, print))


def _latency(site: Site) -> list[Result]:
    took = [_first_line(site, f"latency-{number}") for number in range(_SUBMITS + 1)]
    return [Result("jobs: from submit to the first line", median(took[1:]), "s", goal=3.0)]


def _first_line(site: Site, name: str) -> float:
    began = time.perf_counter()
    site.command("submit", "--command", "echo first", "--name", name)
    until(lambda: any(job_log(site.queue, name)))
    took = time.perf_counter() - began
    until(lambda: site.waiting() == 0)
    return took


_V6E = {"acceleratorType": "v6e-4", "runtimeVersion": "v2-alpha-tpuv6e"}
_MACHINE = {"architecture": "compute", "tpu": {"acceleratorType": "ct6e-standard-4t"}}


def measure_first_job() -> list[Result]:
    """From `pulumi up` to a job's first line, on a machine of Compute Engine and on a TPU VM."""
    took = in_turn(lambda: _first_job(**_MACHINE), lambda: _first_job(tpu=_V6E), 3)
    return [Result("first job: Compute Engine against a TPU VM", took.ratio, "ratio", goal=1.3)]


def _first_job(**form: Any) -> float:
    with (
        tempfile.TemporaryDirectory() as name,
        running(LocalCloudCommand(Path(name) / "cloud")) as cloud,
    ):
        wheel = str(make_trainer(Path(name)))
        training = {"runOn": "tpu", "wheel": wheel, "tensorflowVersion": "2.19.1"}
        began, own = time.perf_counter(), {"zone": "us-east5-a", "vm": {}, **form}
        site = _deployed(Path(name), cloud, training=training, **own)
        return time.perf_counter() - began + _first_line(site, "first")


def _kills(site: Site) -> list[Result]:
    """Short jobs, while the runner is killed and the machine reset."""
    random = Random(17)
    for number in range(_SHORT):
        spec = Spec(f"seq 3; echo end {number}", preemptions=_SHORT)
        site.queue.add(Job(f"short-{number}", str(number), spec, time.time()))
    site.queue.ring()
    kills, began = 0, time.monotonic()
    while site.waiting() and time.monotonic() - began < PATIENCE:
        time.sleep(0.2)
        runner = next(site.runners(), None)
        with contextlib.suppress(psutil.Error):
            # One that lives for a while, however slow the machine is.
            if runner is None or time.time() - runner.create_time() < random.uniform(*_LIFE):
                continue
            kills += 1
            if kills % _RESETS == 0:
                site.google.post(_RESET, timeout=60).raise_for_status()
            else:
                runner.kill()
    whole = sum(_ended_once(site, number) for number in range(_SHORT))
    return [Result("jobs: ended once with a whole log", whole, f"of {_SHORT}", _SHORT, "higher")]


def _ended_once(site: Site, number: int) -> bool:
    job = site.queue.read(f"short-{number}")
    if job is None or [one.why for one in job.tries].count("exited") != 1:
        return False
    pieces = site.queue.store.items(paths.logs(job.name, len(job.tries)))
    found = [site.queue.store.read(item.path) for item in pieces]
    text = b"".join(one[0] for one in found if one)
    return job.code == 0 and text == f"1\n2\n3\nend {number}\n".encode()


def _long_queue(site: Site) -> list[Result]:
    hold = Job("hold", "hold", Spec("sleep 3600"), time.time())
    site.queue.add(hold)
    for number in range(_QUEUED):
        spec = Spec("true", after=("hold",))
        site.queue.add(Job(f"queued-{number}", str(number), spec, time.time()))
    site.queue.ring()
    times = []
    for _ in range(_SUBMITS):
        began = time.perf_counter()
        site.command("list", "--json")
        times.append(time.perf_counter() - began)
    memory = max(process.memory_info().rss for process in site.runners()) / 2**20
    return [
        Result(f"jobs: list with {_QUEUED} queued", median(times), "s", goal=1.0),
        Result(f"jobs: agent's memory with {_QUEUED} queued", memory, "MiB", goal=60.0),
    ]


# --- Beginnings: pip to the first call of gcloud that is answered; the demo by uvx and by make.

_FIRST_ANSWER = """set -e
python3 -m venv . && bin/pip install --quiet --find-links "$WHEELS" tpu-stack-localcloud
bin/localcloud start --port 0 >&2 && trap 'bin/localcloud stop >&2' EXIT
eval "$(bin/localcloud env)"
gcloud projects describe tpu-stack-local >/dev/null"""


def measure_first_answer() -> list[Result]:
    """In an empty folder, from this machine's package index; nothing where gcloud is missing."""
    if not shutil.which("gcloud"):
        return []
    with tempfile.TemporaryDirectory() as name:
        wheel = build("localcloud", Path(name))
        told = {**os.environ, "WHEELS": str(wheel.parent), "LOCALCLOUD_HOME": f"{name}/cloud"}
        began = time.perf_counter()
        subprocess.run(["sh", "-c", _FIRST_ANSWER], cwd=name, env=told, check=True)
        took = time.perf_counter() - began
    return [Result("local cloud: from pip install to gcloud's first answer", took, "s", goal=60.0)]


def measure_uvx() -> list[Result]:
    """Each with a new environment from uv's cache; data and engine are on this machine."""
    with tempfile.TemporaryDirectory() as name:
        uvx, make = first_demos(Path(name))
    return [Result("demo: uvx against make", uvx / make, "ratio", goal=1.1)]


# --- The dashboard in a real browser: fifty stacks with a thousand jobs, and a fast log.
#
# Where no browser is installed, only what the server needs for the same is measured.

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


def measure_dashboard() -> list[Result]:
    """Both on a local cloud in a process of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running(LocalCloudCommand(Path(folder) / "cloud")) as cloud,
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


def _first_paint(page: Page, url: str) -> list[Result]:
    page.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    page.open(url)
    page.wait("window.all")
    paint = page.value("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    stacks = f"dashboard: first paint with {_STACKS} stacks and {_JOBS} jobs"
    return [Result(stacks, paint / 1000, "s", goal=1.0)]


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
        Result("dashboard: longest frame", page.value("window.longest"), "ms", goal=250),
        Result("dashboard: lines in the page", shown, "lines", goal=2250),
    ]


def _at_the_server(url: str) -> list[Result]:
    """What a browser would wait for first."""
    began = time.perf_counter()
    requests.get(url.partition("#")[0], timeout=60).raise_for_status()
    name = "dashboard: the page's first file (no browser is installed)"
    return [Result(name, time.perf_counter() - began, "s", goal=1.0)]
