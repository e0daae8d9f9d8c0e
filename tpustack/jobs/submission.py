"""Submitting a job: its archive first, its record last, so that nothing is half queued."""

from __future__ import annotations

import getpass
import hashlib
import itertools
import json
import re
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from tpu_agent.jobs.queue import QUEUED, RUNNING, SUCCEEDED, Job, Queue, Spec
from tpu_core import paths
from tpu_core.bucket import Conflict
from tpu_core.google import GoogleError
from tpu_core.records import dump
from tpustack.cloud.google import Google, Nodes
from tpustack.errors import UsageError
from tpustack.jobs.queue import why_waiting
from tpustack.jobs.source import Archive

if TYPE_CHECKING:
    from infra.settings import StackSettings


_DIGEST = 8
_NUMBER = re.compile(r"-r\d+$")
_LONGEST_STEM = 40


def submit(queue: Queue, spec: Spec, name: str | None, archive: Archive | None) -> Job:
    """Add a job to the queue and return it.

    Without a name it gets one from its content, so that the same job is not run twice by accident.

    Raises:
        UsageError: there is a job of that name, or one of `spec.after` is missing or has failed.
        GoogleError: the bucket refuses.
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


def submit_again(queue: Queue, job: Job, place: dict[str, str], name: str | None) -> Job:
    """Add a job like an old one, with another name and a place on Vertex AI (or none).

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


def upload(queue: Queue, archive: Archive) -> None:
    """Upload an archive unless the bucket has it."""
    path = paths.archive(archive.sha256)
    if queue.store.look(path) is not None:
        return
    try:
        queue.store.upload(path, archive.file, archive.size, generation=0)
    except Conflict:
        return  # Another command has just uploaded the same.


def _free(queue: Queue, name: str) -> str:
    """Return the next name for one more run of a job."""
    stem = _NUMBER.sub("", name)[: _LONGEST_STEM + _DIGEST]
    taken = queue.summaries()
    names = (f"{stem}-r{number}" for number in itertools.count(2))
    return next(name for name in names if name not in taken)


_NOT_FOUND = 404
_NEW = "it has no bucket yet"


class OnDemand:
    """A stack that is brought up for a job, and taken down after it.

    Args:
        stack: its name.
        idle_stop: after how many minutes without a job its TPU is deleted; None: as set before.
        create: whether to bring it up if it is down.
        managed: whether Vertex AI runs the job.

    Raises:
        UsageError: the stack can't do it, or none is named.
    """

    def __init__(
        self, stack: str | None, idle_stop: int | None, *, create: bool, managed: bool
    ) -> None:
        if managed and (create or idle_stop is not None):
            raise UsageError("--create and --idle-stop are for stacks: Vertex AI makes its own TPU")
        self._stack, self._idle_stop, self._create = stack or "", idle_stop, create
        self._settings = self._load() if create or idle_stop is not None else None

    def prepare(self, queue: Queue, say: Callable[[str], None]) -> None:
        """Bring the stack up if it is down and `create` asks for it. Raises TpustackError."""
        why = self._why_down(queue) if self._create else None
        if why is None:
            return
        # Slow to load; no other command about jobs needs the engine's library.
        from tpustack.engine.backend import users_own

        say(f"pulumi up for the stack {self._stack}: {why}")
        engine = users_own().select(self._stack)
        if why != _NEW:
            # What a limit has taken down is still in the state.
            engine.refresh(say)
        engine.up(say)

    def finish(self, queue: Queue) -> str | None:
        """Write when to delete the TPU; return a warning if nothing will. Raises GoogleError."""
        if self._idle_stop is not None:
            queue.store.write(paths.IDLE_STOP, dump({"minutes": self._idle_stop}))
        elif self._settings is not None and not self._settings.limits.any:
            return (
                f"nothing takes the TPU of the stack {self._stack} down after the job: give "
                "--idle-stop MINUTES, or set limits.idleMinutes"
            )
        return None

    def _load(self) -> StackSettings:
        from tpustack.stacks import load, require_file

        if not self._stack:
            raise UsageError("--create and --idle-stop need --stack NAME")
        require_file(self._stack)
        settings = load(self._stack)
        if self._idle_stop is not None and not (settings.limits.any or settings.recovery.enabled):
            raise UsageError(
                f"--idle-stop: the machine of the stack {self._stack} may not take its TPU down. "
                "Set limits.idleMinutes or limits.timeToLiveHours in its file, which gives it the "
                f"role, and run `pulumi up --stack {self._stack}`"
            )
        return settings

    def _why_down(self, queue: Queue) -> str | None:
        try:
            return why_waiting(queue) or self._why_without_tpu()
        except GoogleError as error:
            if error.status != _NOT_FOUND:
                raise
            return _NEW

    def _why_without_tpu(self) -> str | None:
        """Return that the TPU is gone; None if it exists."""
        from infra.names import names_of

        settings = self._settings
        assert settings is not None
        nodes = Nodes(Google(), settings.project)
        for name in names_of(settings, self._stack).tpus(settings.tpu.slices):
            if nodes.find(settings.tpu_zones, name) is None:
                return f"its TPU {name} is gone"
        return None
