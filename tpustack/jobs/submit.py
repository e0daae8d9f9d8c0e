"""Puts a job into the queue: its archive first, its record last, so that nothing is half queued."""

from __future__ import annotations

import getpass
import hashlib
import itertools
import json
import re
import socket
import time
import uuid
from dataclasses import asdict, replace

from tpu_agent.jobs.queue import QUEUED, RUNNING, SUCCEEDED, Job, Queue, Spec
from tpu_core import paths
from tpu_core.bucket import Conflict
from tpustack.errors import UsageError
from tpustack.jobs.pack import Archive

_DIGEST = 8
_NUMBER = re.compile(r"-r\d+$")
_LONGEST_STEM = 40


def submit(queue: Queue, spec: Spec, name: str | None, archive: Archive | None) -> Job:
    """Add a job to the queue and return it.

    Without a name it gets one by its content, so that the same is not run twice by accident.

    Raises:
        UsageError: there is a job of that name, or one of `spec.after` is missing or has failed.
        StoreError: the bucket refuses.
    """
    _check_after(queue, spec.after)
    job = Job(name or name_of(spec), uuid.uuid4().hex, spec, time.time(), by=who())
    _refuse_twice(queue.read(job.name), job, named=name is not None)
    if archive is not None:
        upload(queue, archive)
    try:
        queue.add(job)
    except Conflict:
        _refuse_twice(queue.read(job.name), job, named=name is not None)
    queue.ring()
    return job


def again(queue: Queue, job: Job, place: dict[str, str], name: str | None) -> Job:
    """Add a job like one that is there, with another name and this place on Vertex AI.

    Raises as `submit` does.
    """
    after = tuple(one for one in job.spec.after if one != job.name)
    spec = replace(job.spec, after=after, vertex=place)
    return submit(queue, spec, name or _free(queue, job.name), None)


def name_of(spec: Spec) -> str:
    """Return a name for a job: what it runs, and a digest of all that it is."""
    words = re.findall(r"[a-z0-9]+", spec.command.lower())
    skipped = {"python", "python3", "bash", "sh", "m", "py"}
    stem = "-".join([word for word in words if word not in skipped][:2])[:_LONGEST_STEM] or "job"
    content = {**asdict(spec), "source": ""}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return f"{stem.strip('-')}-{digest[:_DIGEST]}"


def who() -> str:
    """Name the person at this machine, for other people."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
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


def _refuse_twice(there: Job | None, job: Job, *, named: bool) -> None:
    """Raise UsageError if there is a job of that name that this call has not made."""
    if there is None or there.id == job.id:
        return
    said = f"submitted by {there.by or 'somebody'}, {there.state}"
    if there.spec != job.spec and named:
        raise UsageError(f"--name: {job.name} is in use ({said}). Give another name")
    raise UsageError(
        f"the same job is there already: {job.name} ({said}). `tpustack job resubmit {job.name}` "
        "with your --stack or --bucket runs it once more. Nothing was queued"
    )


def upload(queue: Queue, archive: Archive) -> None:
    """Upload an archive unless it is there."""
    path = paths.archive(archive.sha256)
    if queue.store.look(path) is not None:
        return
    try:
        queue.store.upload(path, archive.file, archive.size, generation=0)
    except Conflict:
        return  # Somebody has just uploaded the same.


def _free(queue: Queue, name: str) -> str:
    """Return the next name for one more run of a job."""
    stem = _NUMBER.sub("", name)[: _LONGEST_STEM + _DIGEST]
    taken = queue.summaries()
    names = (f"{stem}-r{number}" for number in itertools.count(2))
    return next(name for name in names if name not in taken)
