"""One job of a queue: its state, its log, its files, and how they are shown."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tpu_agent.jobs.queue import ENDED, RUNNING, Job, Queue, waiting
from tpu_core import paths
from tpu_core.bucket import Item
from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import vertex
from tpustack.jobs.submission import submit_again, who
from tpustack.jobs.vertex import refreshed

if TYPE_CHECKING:
    from rich.table import Table


_LOOK = 1.0
# Vertex AI knows more than the record only of jobs that never ran or were killed.
_ASK_EVERY = 10


def read_job(queue: Queue, name: str, *, ask: bool = True) -> Job:
    """Return a job; `ask` Vertex AI about one that it runs. Raises UsageError if there is none."""
    if not paths.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no job name. `tpustack job list` names them")
    job = queue.read(name)
    if job is None:
        raise UsageError(
            f"there is no job {name} in gs://{queue.store.bucket}. `tpustack job list` names them"
        )
    return refreshed(queue, job) if ask else job


def wait_for(
    queue: Queue,
    name: str,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Job:
    """Return a job once it is over. Raises TpustackError after `timeout` seconds."""
    deadline = now() + timeout if timeout is not None else None
    looks = itertools.count()
    while not (job := read_job(queue, name, ask=next(looks) % _ASK_EVERY == 0)).is_over:
        if deadline is not None and now() >= deadline:
            raise TpustackError(f"{name} is still {job.state} after {timeout:g} s")
        sleep(_LOOK)
    return job


def job_log(queue: Queue, name: str) -> Iterator[bytes]:
    """Yield what a job has written so far, in pieces."""
    for item in queue.store.items(paths.logs(name)):
        yield _content(queue, item)


def follow_log(
    queue: Queue, name: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """Yield what a job writes until it is over."""
    seen = ""
    for look in itertools.count():
        # All of its log is in the bucket before it is said to be over.
        is_over = read_job(queue, name, ask=look % _ASK_EVERY == 0).is_over
        for item in queue.store.items(paths.logs(name), behind=seen):
            seen = item.path
            yield _content(queue, item)
        if is_over:
            return
        sleep(_LOOK)


def _content(queue: Queue, item: Item) -> bytes:
    found = queue.store.read(item.path)
    return found[0] if found else b""


def stop_job(queue: Queue, name: str) -> Job:
    """End a job and return it: one that waits has ended, one that runs will end soon.

    Raises:
        UsageError: there is no such job.
        GoogleError: the bucket refuses.
        TpustackError: Vertex AI refuses.
    """
    before = read_job(queue, name)
    changed = queue.change(
        name, lambda job: None if job.is_over else job.stopping(time.time(), who())
    )
    queue.ring()
    vertex.cancel(queue, before)
    return changed or read_job(queue, name)


def resubmit_job(queue: Queue, old: Job, place: dict[str, str], name: str | None = None) -> Job:
    """Add a job like an old one, and start it if its place is on Vertex AI.

    Raises as `submit` and `vertex.start` do.
    """
    new = submit_again(queue, old, place, name)
    return vertex.start(queue, new, place) if place else new


@dataclass(frozen=True)
class Artifact:
    """A file that a job has left: its name in the job's folder, its gs:// URL, its size."""

    name: str
    url: str
    bytes: int


def artifacts_of(queue: Queue, job: str) -> list[Artifact]:
    """Return the files in a job's folder, without its logs. Raises GoogleError."""
    folder, logs = paths.folder(job), paths.logs(job)
    bucket = queue.store.bucket
    return [
        Artifact(item.path.removeprefix(folder), f"gs://{bucket}/{item.path}", item.size)
        for item in queue.store.items(folder)
        if not item.path.startswith(logs) and not item.path.endswith("/")
    ]


def download(queue: Queue, found: Iterable[Artifact], output: Path) -> None:
    """Write files into a folder.

    Raises:
        TpustackError: a name leads out of it, or it can't be written.
        GoogleError: the bucket refuses.
    """
    bucket = f"gs://{queue.store.bucket}/"
    for one in found:
        name = PurePosixPath(one.name)
        if name.is_absolute() or ".." in name.parts:
            raise TpustackError(f"{one.url} is not downloaded: its name leads out of {output}")
        content = queue.store.read(one.url.removeprefix(bucket))
        if content is None:
            continue
        path = output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[0])
        except OSError as error:
            raise TpustackError(f"--output: {path} can't be written: {error.strerror}") from None


_COMMAND = 30
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def job_rows(jobs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return all jobs as rows: those that run, those that wait in their order, the others."""
    places = {name: place for place, name in enumerate(waiting(jobs), 1)}

    def rank(name: str) -> tuple[int, float, str]:
        state = jobs[name]["state"]
        kind = 0 if state == RUNNING else 2 if state in ENDED else 1
        at = -jobs[name]["submitted"] if kind == 2 else places.get(name, len(jobs))
        return kind, at, name

    return [
        {"name": name, "place": places.get(name), **jobs[name]} for name in sorted(jobs, key=rank)
    ]


def jobs_table(shown: list[dict[str, Any]]) -> Table:
    """Return a table of rows."""
    # Commands that print no table needn't load it.
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("job", "state", "next", "prio", "tries", "age", "took"):
        made.add_column(name, no_wrap=True)
    # The one that gives way where the terminal is narrow.
    made.add_column("command", min_width=12)
    now = time.time()
    for row in shown:
        took = span((row["ended"] or now) - row["started"]) if row["started"] else ""
        cells = [row["name"], _state(row), row["place"] or "", row["priority"], row["tries"]]
        cells += [span(now - row["submitted"]), took, _short(row["command"])]
        made.add_row(*(Text(console.line(str(cell))) for cell in cells))
    return made


def job_document(job: Job, bucket: str) -> dict[str, Any]:
    """Return all that is known of a job, for programs."""
    return {**dataclasses.asdict(job), "bucket": f"gs://{bucket}"}


def job_lines(job: Job, bucket: str) -> list[str]:
    """Return all that is known of a job, for people."""
    spec = job.spec
    shown = [
        f"{job.name}: {job.state}" + (f" ({job.reason})" if job.reason else ""),
        f"  command    {spec.command}",
        f"  framework  {spec.framework}",
        f"  submitted  {moment(job.submitted)} by {job.by or 'unknown'}",
        f"  budgets    {spec.failures} failures, {spec.preemptions} preemptions",
        f"  folder     gs://{bucket}/jobs/{job.name}",
    ]
    if spec.source:
        shown.insert(2, f"  source     {spec.source} ({spec.archive[:12]})")
    if spec.vertex:
        spot = "spot " if spec.vertex.get("strategy") == "SPOT" else ""
        where = f"{spot}{spec.vertex.get('tpu')} of Vertex AI in {spec.vertex.get('region')}"
        shown.insert(2, f"  runs on    {where}, {job.custom_job or 'not yet known there'}")
    if spec.after:
        shown.append(f"  after      {', '.join(spec.after)}")
    if job.code is not None:
        shown.append(f"  exit code  {job.code}")
    for one in job.tries:
        ended = f"{one.why} after {span(one.ended - one.started)}" if one.ended else "runs"
        code = f", exit code {one.code}" if one.code is not None else ""
        shown.append(f"  try {one.number}: {moment(one.started)} on {one.machine}, {ended}{code}")
    return [console.unbroken(line) for line in shown]


def moment(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """Return a duration as people read it."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def _short(command: str) -> str:
    return command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…"


def _state(row: Mapping[str, Any]) -> str:
    if row["state"] == RUNNING and row["stop"]:
        return "stopping"
    return f"{row['state']} ({row['code']})" if row["code"] else str(row["state"])
