"""What a job is, and how it changes: pure data, without a clock, a bucket or a machine."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_core import paths, records
from tpu_core.bucket import Bucket, Conflict

QUEUED, RUNNING = "queued", "running"
SUCCEEDED, FAILED, STOPPED, TIMED_OUT = "succeeded", "failed", "stopped", "timed-out"
ENDED = (SUCCEEDED, FAILED, STOPPED, TIMED_OUT)
FRAMEWORKS = ("none", "tensorflow", "pytorch", "jax")
ON_EACH_HOST = ("pytorch", "jax")
"""Those that drive the chips of their own host only. TensorFlow may drive all from one."""
# Wrong input, a program that can't be run, and one that is not there (POSIX 2.8.2): running any of
# them once more changes nothing.
_FINAL_CODES = (2, 126, 127)
_SAVED = 75
"""EX_TEMPFAIL: the program was told that its machine goes, and has saved what it had."""
_CODES = {STOPPED: 143, TIMED_OUT: 124}
"""Exit codes for what ends without one, as shells and timeout(1) have them."""
_STATES = (QUEUED, RUNNING, *ENDED)
_SHA256 = re.compile(r"[0-9a-f]{64}|")
IMAGE = re.compile(r"(?!.*//)[a-z0-9][\w.:/@-]{0,254}", re.ASCII)
"""What Docker takes for an image, and never for an option; it checks the rest."""
NEEDS_ROOT = (
    "{} needs jobs.asRoot: true, which is not set for {}: only a privileged container can drive a "
    "TPU, and that is root on the machine. Set it in the stack's file and run `{}`, or leave "
    "--image out"
)
# The end of the last year that a date has.
_LAST = 253402300799.0


@dataclass(frozen=True)
class Spec:
    """What to run.

    Attributes:
        command: for bash.
        kind: `folder`, `wheel` or `none`: what the archive is.
        archive: its SHA-256; empty without one.
        source: where it came from, for people.
        requirements: the text of a requirements file; empty without one.
        framework: one of FRAMEWORKS.
        after: the jobs that must have succeeded before.
        timeout: seconds that an attempt may take; None for any time.
        failures: how often it is started again after a failure.
        preemptions: how often after its TPU or its machine went.
        image: the container image that it runs in on the stack's own machine; empty without one.
        vertex: where Vertex AI runs it (`project`, `region`, `tpu`, `image`, `account`, `network`,
            for spot `strategy`, for slices `hosts`); empty for a job of the stack's own machine.
    """

    command: str
    kind: str = "none"
    archive: str = ""
    source: str = ""
    env: dict[str, str] = field(default_factory=dict)
    requirements: str = ""
    framework: str = "none"
    priority: int = 0
    after: tuple[str, ...] = ()
    timeout: float | None = None
    failures: int = 0
    preemptions: int = 10
    image: str = ""
    vertex: dict[str, str] = field(default_factory=dict)

    @property
    def fits_image(self) -> bool:
        """Return whether the image, if there is one, is one, and brings all packages itself."""
        alone = not self.requirements and self.kind != "wheel"
        return not self.image or (alone and IMAGE.fullmatch(self.image) is not None)


@dataclass(frozen=True)
class Try:
    """A start of a job on a machine; `why` says how it ended: see Outcome.

    `image` is the container image that it ran in, by its digest.
    """

    number: int
    runner: str
    machine: str
    tpu: str
    started: float
    ended: float | None = None
    why: str = ""
    code: int | None = None
    image: str = ""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        why: `exited`, `stopped`, `timed-out`, `preempted` or `setup`: what the job needs could not
            be had.
        code: the exit code, if there is one.
        said: more, for people.
        image: the container image that it ran in, by its digest; empty without one.
    """

    why: str
    code: int | None = None
    said: str = ""
    image: str = ""


@dataclass(frozen=True)
class Job:
    """A job as its record has it; `stop` says that it is to end.

    `custom_job` is what Vertex AI calls it; empty for a job of the stack's own machine.
    """

    name: str
    id: str
    spec: Spec
    submitted: float
    by: str = ""
    state: str = QUEUED
    tries: tuple[Try, ...] = ()
    stop: bool = False
    reason: str = ""
    code: int | None = None
    ended: float | None = None
    custom_job: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended for good."""
        return self.state in ENDED

    def started(self, runner: str, machine: str, tpu: str, now: float) -> Job:
        """Return the job with one more try on a machine."""
        new = Try(len(self.tries) + 1, runner, machine, tpu, now)
        return dataclasses.replace(self, state=RUNNING, tries=(*self.tries, new), reason="")

    def stopping(self, now: float, who: str) -> Job:
        """Return the job after a request to stop it: one that waits ends at once."""
        if self.state == QUEUED:
            return self.over(STOPPED, now, f"{who} stopped it before it ran")
        return dataclasses.replace(self, stop=True)

    def over(self, state: str, now: float, reason: str, code: int | None = None) -> Job:
        """Return the job ended for good."""
        code = 0 if state == SUCCEEDED else code or _CODES.get(state, 1)
        return dataclasses.replace(self, state=state, reason=reason, code=code, ended=now)

    def after_try(self, outcome: Outcome, now: float) -> Job:
        """Return the job after its last attempt has ended: over, or queued once more."""
        saved = (outcome.why, outcome.code) == ("exited", _SAVED)
        why = "preempted" if saved else outcome.why
        code, image = outcome.code, outcome.image
        last = dataclasses.replace(self.tries[-1], ended=now, why=why, code=code, image=image)
        job = dataclasses.replace(self, tries=(*self.tries[:-1], last))
        if last.why == "exited" and outcome.code == 0:
            return job.over(SUCCEEDED, now, "")
        if last.why == "stopped" or self.stop:
            return job.over(STOPPED, now, "it was stopped")
        if last.why == "timed-out":
            spent = f"it ran for longer than {self.spec.timeout:g} s"
            return job.over(TIMED_OUT, now, spent)
        return job._again(last, outcome, now)

    def _again(self, last: Try, outcome: Outcome, now: float) -> Job:
        kind, budget = ("preempted", self.spec.preemptions)
        if last.why != kind:
            kind, budget = ("exited", self.spec.failures)
        used = sum(1 for one in self.tries[:-1] if one.why == kind) + 1
        text = outcome.said or f"exit code {outcome.code}"
        if last.why == "setup" or (last.why == "exited" and outcome.code in _FINAL_CODES):
            return self.over(FAILED, now, text, outcome.code)
        if used > budget:
            tried = f" (further attempts: {budget})" if budget else ""
            return self.over(FAILED, now, f"{text}{tried}", outcome.code)
        return dataclasses.replace(self, state=QUEUED, reason=f"restarting: {text}")

    def to_json(self) -> bytes:
        """Return the record's content."""
        return records.dump(self)

    def summary(self) -> dict[str, Any]:
        """Return what a list of all jobs needs, which the bucket's own lists carry."""
        last = self.tries[-1] if self.tries else None
        return {
            "format": records.FORMAT,
            "state": self.state,
            "priority": self.spec.priority,
            "submitted": self.submitted,
            "after": list(self.spec.after),
            "framework": self.spec.framework,
            "command": self.spec.command[:80],
            "tries": len(self.tries),
            "runner": last.runner if last else "",
            "tpu": last.tpu if last else "",
            "started": last.started if last else None,
            "ended": self.ended,
            "code": self.code,
            "stop": self.stop,
            "vertex": bool(self.spec.vertex),
            "reason": self.reason[:200],
        }


@dataclass(frozen=True)
class Summary:
    """What a list tells of a job."""

    state: str
    priority: int
    submitted: float
    after: list[str]
    framework: str
    command: str
    tries: int
    runner: str
    tpu: str
    started: float | None
    ended: float | None
    code: int | None
    stop: bool
    vertex: bool
    reason: str


def parse(data: bytes, name: str) -> Job:
    """Return the job of that name in a record. Raises Unreadable."""
    job = records.load(Job, data)
    spec, times = job.spec, [job.submitted, job.ended or 0.0]
    times += [at or 0.0 for one in job.tries for at in (one.started, one.ended)]
    wrong = {
        "name": job.name != name or not paths.NAME.fullmatch(name),
        "state": job.state not in _STATES or (job.state == RUNNING and not job.tries),
        "tries": [one.number for one in job.tries] != list(range(1, len(job.tries) + 1)),
        "times": not all(0.0 <= at <= _LAST for at in times),
        "spec.archive": not _SHA256.fullmatch(spec.archive),
        "spec.source": spec.kind == "wheel" and not spec.source.endswith(".whl"),
        "spec.image": not spec.fits_image,
        "spec.after": not all(map(paths.NAME.fullmatch, spec.after)),
        "spec.vertex.hosts": not spec.vertex.get("hosts", "1").isdecimal(),
    }
    for where, is_wrong in wrong.items():
        if is_wrong:
            raise records.Unreadable(f"invalid {where}")
    return job


# --- The records of all jobs in the bucket: read, listed, and changed on conditions.

# Of a record; its requirements may have 256 KiB.
_LARGEST = 4 << 20


class Queue:
    """The queue of a bucket."""

    def __init__(self, store: Bucket, say: Callable[[str], None]) -> None:
        self.store, self._say = store, say
        self._aside: dict[str, tuple[int, str]] = {}

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Return what a list tells of every job, by name. Raises GoogleError.

        Without what is set aside: an object that is not a record, or one of another format.
        """
        found = {}
        for item in self.store.items(paths.QUEUE):
            name = paths.job_of(item.path)
            if self._aside.get(item.path, (-1,))[0] == item.generation:
                continue
            try:
                is_named = paths.NAME.fullmatch(name) and item.path == paths.record(name)
                if not is_named or item.size > _LARGEST:
                    raise records.Unreadable(f"no record has this name or {item.size} bytes")
                found[name] = vars(records.sound(Summary, item.summary))
            except records.Unreadable as error:
                self._set_aside(item.path, item.generation, str(error))
        return found

    def read(self, name: str) -> Job | None:
        """Return a job; None if there is none. Raises GoogleError."""
        found = self._read(name)
        return found[0] if found else None

    def add(self, job: Job) -> None:
        """Add a job, whole or not at all. Raises Conflict if there is one of its name."""
        path = paths.record(job.name)
        self.store.write(path, job.to_json(), generation=0, summary=job.summary())

    def change(self, name: str, how: Callable[[Job], Job | None]) -> Job | None:
        """Replace a job's record by what `how` makes of it; return the new one.

        Where `how` gives None or changes nothing, or there is no such job, nothing is written.
        If someone writes in between, `how` is called again. Raises GoogleError.
        """
        while True:
            found = self._read(name)
            changed = how(found[0]) if found else None
            if found is None or changed is None:
                return None
            if changed == found[0]:
                return changed
            try:
                self.store.write(
                    paths.record(name),
                    changed.to_json(),
                    generation=found[1],
                    summary=changed.summary(),
                )
            except Conflict:
                continue
            return changed

    def ring(self) -> None:
        """Tell the runner that something has changed; it would see it later anyway."""
        self.store.write(paths.BELL, b"")

    def _read(self, name: str) -> tuple[Job, int] | None:
        path = paths.record(name)
        if (found := self.store.read(path)) is None:
            return None
        try:
            return parse(found[0], name), found[1]
        except records.Unreadable as error:
            self._set_aside(path, found[1], str(error))
            return None

    def _set_aside(self, path: str, generation: int, why: str) -> None:
        """Say once what is wrong with an object, and don't look at it again until it changes."""
        if self._aside.get(path) != (generation, why):
            self._aside[path] = generation, why
            self._say(f"{ascii(path)[1:-1]} is set aside: {why}")


Summaries = Mapping[str, Mapping[str, Any]]
"""What is known of each job, by name."""


def waiting(jobs: Summaries) -> list[str]:
    """Return the jobs that may start, the next one first.

    Those of a higher priority come first, then those that were submitted earlier. Vertex AI starts
    its own.
    """

    def rank(name: str) -> tuple[float, float, str]:
        return -jobs[name]["priority"], jobs[name]["submitted"], name

    queued = (name for name, job in jobs.items() if job["state"] == QUEUED and not job["vertex"])
    return sorted((name for name in queued if all(_succeeded(jobs, name))), key=rank)


def in_vain(jobs: Summaries) -> Iterator[tuple[str, str]]:
    """Yield the jobs that wait for one that will never succeed, and why it won't."""
    for name, job in jobs.items():
        if job["state"] != QUEUED:
            continue
        for one in job["after"]:
            state = jobs[one]["state"] if one in jobs else "gone"
            if state in (*ENDED, "gone") and state != SUCCEEDED:
                yield name, f"it comes after {one}, which is {state}"
                break


def _succeeded(jobs: Summaries, name: str) -> Iterator[bool]:
    return (one in jobs and jobs[one]["state"] == SUCCEEDED for one in jobs[name]["after"])
