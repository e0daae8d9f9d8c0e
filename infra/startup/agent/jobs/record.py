"""What a job is, and how it changes: pure data, without a clock, a bucket or a machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


class Unreadable(Exception):
    """A record is not one: damaged, or of a later release."""


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
        timeout: seconds that a try may take; None for any time.
        failures: how often it is started again after a failure.
        preemptions: how often after its TPU or its machine went.
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
    vertex: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Try:
    """A start of a job on a machine; `why` says how it ended: see Outcome."""

    number: int
    runner: str
    machine: str
    tpu: str
    started: float
    ended: float | None = None
    why: str = ""
    code: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a try ended.

    Attributes:
        why: `exited`, `stopped`, `timed-out`, `preempted` or `setup`: what the job needs could not
            be had.
        code: the exit code, if there is one.
        said: more, for people.
    """

    why: str
    code: int | None = None
    said: str = ""


@dataclass(frozen=True)
class Job:
    """A job as its record has it; `stop` says that somebody wants it to end.

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
        """Return the job when somebody wants it to end: one that waits ends at once."""
        if self.state == QUEUED:
            return self.over(STOPPED, now, f"{who} stopped it before it ran")
        return dataclasses.replace(self, stop=True)

    def over(self, state: str, now: float, reason: str, code: int | None = None) -> Job:
        """Return the job ended for good."""
        code = 0 if state == SUCCEEDED else code or _CODES.get(state, 1)
        return dataclasses.replace(self, state=state, reason=reason, code=code, ended=now)

    def after_try(self, outcome: Outcome, now: float) -> Job:
        """Return the job after its last try has ended: over, or queued once more."""
        last = dataclasses.replace(self.tries[-1], ended=now, why=_why(outcome), code=outcome.code)
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
        said = outcome.said or f"exit code {outcome.code}"
        if last.why == "setup" or (last.why == "exited" and outcome.code in _FINAL_CODES):
            return self.over(FAILED, now, said, outcome.code)
        if used > budget:
            left = f"; it was started again {budget} times" if budget else ""
            return self.over(FAILED, now, f"{said}{left}", outcome.code)
        return dataclasses.replace(self, state=QUEUED, reason=f"started again: {said}")

    def to_json(self) -> bytes:
        """Return the record's content, which agents of earlier releases can read, too."""
        content = dataclasses.asdict(self)
        if not self.spec.vertex:
            del content["spec"]["vertex"], content["custom_job"]
        return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()

    def summary(self) -> dict[str, Any]:
        """Return what a list of all jobs needs, which the bucket's own lists carry."""
        last = self.tries[-1] if self.tries else None
        return {
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


def _why(outcome: Outcome) -> str:
    return "preempted" if (outcome.why, outcome.code) == ("exited", _SAVED) else outcome.why


def parse(data: bytes, name: str) -> Job:
    """Return the job of that name in a record. Raises Unreadable."""
    try:
        content: Mapping[str, Any] = json.loads(data)
        if content["name"] != name:
            raise ValueError(f"it is that of {content['name']!r}")
        spec = Spec(**{**content["spec"], "after": tuple(content["spec"]["after"])})
        tries = tuple(Try(**one) for one in content["tries"])
        return Job(**{**content, "spec": spec, "tries": tries})
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"no record of a job ({type(error).__name__}: {error})") from None
