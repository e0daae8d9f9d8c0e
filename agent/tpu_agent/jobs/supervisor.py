"""Run one try of a job: make its environment, run its command, end it when it is time to.

It is a process of its own, and the only one that starts the job's. It survives the runner; but a
runner that is away for too long may have lost the TPU to another machine, and then the job ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tpu_agent.jobs.attempt import Attempt, printable, why_full
from tpu_agent.jobs.environment import Environment, Harmful, SetupError
from tpu_agent.jobs.identity import Identity
from tpu_agent.jobs.record import Outcome, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.google import GoogleError
from tpu_core.lease import SURE

_LOOK = 0.1
# Between the wish that a program ends, and its end.
_GRACE = 10.0
_LEASE_SLACK = 5.0
# A machine that goes down tells all processes at once: so long after a program's end by a signal
# it may turn out that this was why.
_TOLD_WITHIN = 1.0
_SIGNALLED = 128


_GOES_DOWN = Outcome("preempted", said="its machine goes down")


class Ended(Exception):
    """The try is to end, and what it ran has been ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


def now() -> float:
    """Return seconds since the boot, with those that the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def supervise(folder: Path, store: Callable[[str], Bucket], who: Identity) -> None:
    """Run the try in a folder as `who`, unless a supervisor has done so; `store` opens a bucket."""
    attempt = Attempt(folder)
    if not attempt.claim():
        return
    # What this process itself writes is part of the job's log.
    log = os.open(attempt.log, os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        supervisor = Supervisor(attempt, store, who)
        signal.signal(signal.SIGTERM, lambda *_: supervisor.go_down())
        outcome = supervisor.run()
    except Exception as error:  # Whatever it is, the runner must get to know.
        outcome = Outcome("setup", 1, f"the job could not be run: {type(error).__name__}: {error}")
    if outcome.code and (why := why_full(folder)):
        outcome = replace(outcome, said=f"{why}; {outcome.said}".rstrip("; "))
    if outcome.said:
        say(outcome.said)
    attempt.finish(outcome)


def say(text: str) -> None:
    """Write a line to the job's log, if the disk takes it."""
    with contextlib.suppress(OSError):
        print(f"tpu-stack: {printable(text)}", flush=True)


class Supervisor:
    """Runs the commands of a try."""

    def __init__(
        self, attempt: Attempt, store: Callable[[str], Bucket], who: Identity | None = None
    ) -> None:
        content, self._who = attempt.content(), who or Identity()
        self._attempt, self._content = attempt, content
        self._spec = Spec(**content["spec"])
        self._store = store(content["bucket"])
        self._deadline: float | None = None
        self._goes_down = False

    def go_down(self) -> None:
        """Know that the machine goes down."""
        self._goes_down = True

    def run(self) -> Outcome:
        """Make the environment, run the command; return how it ended."""
        folder = self._attempt.folder
        environment = Environment(folder, self._spec, self._content, self._call, self._who.own)
        try:
            self._who.enter(self._check)
            environment.make(self._store)
            if self._spec.timeout is not None:
                self._deadline = now() + self._spec.timeout
            variables = environment.variables()
            code = self._call(["/bin/bash", "-c", self._spec.command], variables)
        except Ended as ended:
            if ended.outcome.why != "preempted":
                self._keep_artifacts(environment.artifacts)
            return ended.outcome
        except (SetupError, Harmful, GoogleError) as error:
            return Outcome("setup", 1, str(error))
        self._keep_artifacts(environment.artifacts)
        said = "the command does not exist on the machine (exit code 127)" if code == 127 else ""
        return Outcome("exited", code, said)

    def _call(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command to its end; return its exit code. Raises Ended if the try is to end."""
        self._check()
        folder = self._attempt.folder
        process = subprocess.Popen(
            self._who.command(command),
            cwd=folder / "work",
            env={**os.environ, **self._who.variables(folder / "home"), **variables},
            stdin=subprocess.DEVNULL,
        )
        while process.poll() is None:
            if outcome := self._why_to_end():
                self._end(process)
                raise Ended(outcome)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        # What it left in the background goes with it.
        self._attempt.kill()
        code = process.returncode
        code = code if code >= 0 else _SIGNALLED - code
        if code > _SIGNALLED:
            time.sleep(_TOLD_WITHIN)
            if self._goes_down:
                raise Ended(_GOES_DOWN)
        return code

    def _check(self) -> None:
        """Raise Ended if the try is to end."""
        if outcome := self._why_to_end():
            raise Ended(outcome)

    def _why_to_end(self) -> Outcome | None:
        if self._deadline is not None and now() > self._deadline:
            return Outcome("timed-out")
        if self._goes_down:
            return _GOES_DOWN
        beat = self._attempt.last_beat()
        if beat is not None and now() > beat + SURE + _LEASE_SLACK:
            return Outcome("preempted", said="the runner of this machine is gone")
        return self._attempt.is_to_end()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self._attempt.ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        self._attempt.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)

    def _keep_artifacts(self, folder: Path) -> None:
        kept = f"{paths.artifacts(self._content['job'])}{self._content.get('artifacts', '')}"
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            name = f"{kept}{path.relative_to(folder).as_posix()}"
            try:
                with path.open("rb") as file:
                    self._store.upload(name, file, path.stat().st_size)
            except (OSError, UnicodeError) as error:
                say(f"the artifact {path.name} could not be kept: {error}")
