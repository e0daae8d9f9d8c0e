"""One job of a queue: submitted, waited for, stopped, and shown with its log and its files.

Records, states and conditions are `tpu_agent.jobs.queue`'s, where the runner has them, too.
"""

import dataclasses
import getpass
import hashlib
import itertools
import json
import math
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any

from tpu_agent.jobs.queue import ENDED, QUEUED, RUNNING, SUCCEEDED, Job, Queue, Spec, waiting
from tpu_core import paths, words
from tpu_core.bucket import Conflict
from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import source, vertex

# A job's name may have 63 characters: 40 of its command, 8 of a digest, and the number of its run.
_LONGEST_STEM, _DIGEST = 40, 8
_NUMBER = re.compile(r"-r\d+$")
# Seconds between two looks into the bucket.
_LOOK = 1.0
# How many looks there are for each question to Vertex AI, which knows more than the record only of
# jobs that never ran or were killed.
_ASK_EVERY = 10


def submit(queue: Queue, spec: Spec, name: str | None, archive: source.Archive | None) -> Job:
    """Add a job to the queue and return it: its archive first, its record last.

    Without a name it gets one from its content, so that the same job is not run twice by accident.

    Raises:
        UsageError: there is a job of that name, or one of `spec.after` is missing or has failed.
        GoogleError: the bucket refuses.
    """
    _check_after(queue, spec.after)
    job = Job(name or name_of(spec), uuid.uuid4().hex, spec, time.time(), by=_who())
    _refuse_twice(queue.read(job.name), job, named=name is not None)
    if archive is not None:
        source.upload(queue, archive)
    try:
        queue.add(job)
    except Conflict:
        # The same name at the same moment, or this very record, whose answer was lost.
        _refuse_twice(queue.read(job.name), job, named=name is not None)
    # After the record: a runner that wakes up earlier finds nothing and sleeps again.
    queue.ring()
    return job


def name_of(spec: Spec) -> str:
    """Return a name for a job: what it runs, and a digest of all that it is."""
    words = re.findall(r"[a-z0-9]+", spec.command.lower())
    skipped = {"python", "python3", "bash", "sh", "m", "py"}
    stem = "-".join([word for word in words if word not in skipped][:2])[:_LONGEST_STEM] or "job"
    # The folder's path does not count: the same files from elsewhere are the same job.
    content = {**dataclasses.asdict(spec), "source": ""}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{stem.strip('-')}-{digest[:_DIGEST]}"


def _who() -> str:
    """Name the person at this computer, for other people."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # A container's user may have no name.
        return socket.gethostname()


def _check_after(queue: Queue, names: tuple[str, ...]) -> None:
    problems = []
    for name in names:
        job = queue.read(name)
        if job is None:
            problems.append(f"--after: there is no job {name}. `tpustack job list` names them")
        elif job.state not in (QUEUED, RUNNING, SUCCEEDED):
            problems.append(f"--after: the job {name} is {job.state}, so this one would never run")
    if problems:
        raise UsageError("\n".join(problems))


def _refuse_twice(known: Job | None, job: Job, *, named: bool) -> None:
    """Raise UsageError if there is a job of that name that this call has not made."""
    if known is None or known.id == job.id:
        return
    origin = f"submitted by {known.by or 'unknown'}, {known.state}"
    if known.spec != job.spec and named:
        raise UsageError(f"--name: {job.name} is in use ({origin}). Give another name")
    raise UsageError(
        f"the same job is there already: {job.name} ({origin}). `tpustack job resubmit {job.name}` "
        "with your --stack or --bucket runs it once more. Nothing was queued"
    )


def resubmit_job(queue: Queue, old: Job, place: dict[str, str], name: str | None = None) -> Job:
    """Add a job like an old one, and start it if its place is on Vertex AI.

    Raises as `submit` and `vertex.start` do.
    """
    after = tuple(one for one in old.spec.after if one != old.name)
    if name is None:
        stem = _NUMBER.sub("", old.name)[: _LONGEST_STEM + _DIGEST]
        known = queue.summaries()
        names = (f"{stem}-r{number}" for number in itertools.count(2))
        name = next(one for one in names if one not in known)
    # The bucket has its archive already.
    new = submit(queue, dataclasses.replace(old.spec, after=after, vertex=place), name, None)
    return vertex.start(queue, new, place) if place else new


def read_job(queue: Queue, name: str, *, ask: bool = True) -> Job:
    """Return a job; `ask` Vertex AI about one that it runs. Raises UsageError if there is none."""
    if not paths.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a job name. `tpustack job list` names them")
    job = queue.read(name)
    if job is None:
        raise UsageError(
            f"there is no job {name} in gs://{queue.store.bucket}. `tpustack job list` names them"
        )
    return vertex.refreshed(queue, job) if ask else job


def wait_for(queue: Queue, name: str, timeout: float | None) -> Job:
    """Return a job once it is over. Raises TpustackError after `timeout` seconds."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    looks = itertools.count()
    while not (job := read_job(queue, name, ask=next(looks) % _ASK_EVERY == 0)).is_over:
        if time.monotonic() >= deadline:
            raise TpustackError(f"{name} is still {job.state} after {timeout:g} s")
        time.sleep(_LOOK)
    return job


def job_log(queue: Queue, name: str) -> Iterator[bytes]:
    """Yield what a job has written so far, in pieces."""
    return (content for _, content in _pieces(queue, name, behind=""))


def follow_log(queue: Queue, name: str) -> Iterator[bytes]:
    """Yield what a job writes until it is over."""
    seen = ""
    for look in itertools.count():
        # The runner writes the log's last piece before the job's end: so the end is read first.
        is_over = read_job(queue, name, ask=look % _ASK_EVERY == 0).is_over
        for path, content in _pieces(queue, name, behind=seen):
            seen = path
            yield content
        if is_over:
            return
        time.sleep(_LOOK)


def _pieces(queue: Queue, name: str, behind: str) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the pieces of a log after one of them; names sort like times."""
    for item in queue.store.items(paths.logs(name), behind=behind):
        found = queue.store.read(item.path)
        yield item.path, found[0] if found else b""


def stop_job(queue: Queue, name: str) -> Job:
    """End a job and return it: one that waits has ended, one that runs will end soon.

    Raises:
        UsageError: there is no such job.
        GoogleError: the bucket refuses.
        TpustackError: Vertex AI refuses.
    """
    before = read_job(queue, name)
    # The record first: a container that starts in between reads there that it must end.
    changed = queue.change(
        name, lambda job: None if job.is_over else job.stopping(time.time(), _who())
    )
    queue.ring()
    vertex.cancel(queue, before)
    return changed or read_job(queue, name)


@dataclasses.dataclass(frozen=True)
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
        # Some clients write an empty object for a folder.
        if not item.path.startswith(logs) and not item.path.endswith("/")
    ]


def download(queue: Queue, found: Iterable[Artifact], output: Path) -> None:
    """Write files into a folder.

    Raises:
        TpustackError: a name leads out of it, or it can't be written.
        GoogleError: the bucket refuses.
    """
    for one in found:
        # A job chose the name, and may have meant this computer's ~/.bashrc.
        name = PurePosixPath(one.name)
        if name.is_absolute() or ".." in name.parts:
            raise TpustackError(f"{one.url} is not downloaded: its name leads out of {output}")
        content = queue.store.read(one.url.removeprefix(f"gs://{queue.store.bucket}/"))
        # It was deleted since it was listed.
        if content is None:
            continue
        path = output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content[0])
        except OSError as error:
            raise TpustackError(f"--output: {path} can't be written: {error.strerror}") from None


# --- Jobs for people and programs.

_COMMAND = 30


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


def jobs_table(shown: list[dict[str, Any]], columns: int | None) -> list[str]:
    """Return rows as the lines of a table; `columns` is the terminal's width, if there is one."""
    # Commands that print no table needn't load it.
    from tpu_infra.cost import aligned

    heading = ("job", "state", "next", "prio", "tries", "age", "took", "command")
    table: list[tuple[str, ...]] = [heading]
    now = time.time()
    for row in shown:
        state = "stopping" if row["state"] == RUNNING and row["stop"] else row["state"]
        state += f" ({row['code']})" if row["code"] and state != "stopping" else ""
        end = row["ended"] or now
        took = words.duration(round(end - row["started"])) if row["started"] else ""
        command = row["command"]
        command = command if len(command) <= _COMMAND else f"{command[: _COMMAND - 1]}…"
        cells = [row["name"], state, row["place"] or "", row["priority"], row["tries"]]
        cells += [words.duration(round(now - row["submitted"])), took, command]
        table.append(tuple(console.line(str(cell)) for cell in cells))
    return aligned(table, len(heading), columns, ("command", "prio", "took", "tries"))


def job_document(job: Job, bucket: str) -> dict[str, Any]:
    """Return all that is known of a job, for programs."""
    return {**dataclasses.asdict(job), "bucket": f"gs://{bucket}"}


def job_lines(job: Job, bucket: str) -> list[str]:
    """Return all that is known of a job, for people."""
    spec = job.spec
    reason = f" ({job.reason})" if job.reason else ""
    shown = [f"{job.name}: {job.state}{reason}", f"  command    {spec.command}"]
    if spec.vertex:
        spot = "spot " if spec.vertex.get("strategy") == vertex.SPOT else ""
        where = f"{spot}{spec.vertex.get('tpu')} of Vertex AI in {spec.vertex.get('region')}"
        shown.append(f"  runs on    {where}, {job.custom_job or 'not yet known there'}")
    if spec.source:
        shown.append(f"  source     {spec.source} ({spec.archive[:12]})")
    if spec.image:
        shown.append(f"  image      {spec.image}")
    shown += [
        f"  framework  {spec.framework}",
        f"  submitted  {moment(job.submitted)} by {job.by or 'unknown'}",
        f"  budgets    {spec.failures} failures, {spec.preemptions} preemptions",
        f"  folder     gs://{bucket}/{paths.folder(job.name).rstrip('/')}",
    ]
    if spec.after:
        shown.append(f"  after      {', '.join(spec.after)}")
    if job.code is not None:
        shown.append(f"  exit code  {job.code}")
    for one in job.tries:
        took = words.duration(round((one.ended or 0.0) - one.started))
        ended = f"{one.why} after {took}" if one.ended else "runs"
        code = f", exit code {one.code}" if one.code is not None else ""
        image = f", in {one.image}" if one.image else ""
        where = f"{moment(one.started)} on {one.machine}"
        shown.append(f"  try {one.number}: {where}, {ended}{code}{image}")
    return [console.unbroken(line) for line in shown]


def moment(seconds: float) -> str:
    """Return a time as people read it."""
    return f"{datetime.fromtimestamp(seconds, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
