"""One attempt at a job on this machine: its folder, its log, and its supervisor.

The supervisor is a process of its own, and the only one that starts the job's. It survives the
runner; but if the runner is gone for too long, another machine may have the TPU, and the job ends.
They talk through the folder:

    try.json    what to run (written before the supervisor starts)
    log         everything that it writes
    started     made by its supervisor, so that no second one runs the same attempt
    lock        held while its supervisor lives (child.py, which has more files here)
    heartbeat   written by the runner while it is sure of its lease
    end         written by the runner: why the attempt is to end
    ended       how it ended: written last

A killed runner that comes back finds all of it again. The last three have their place on the disk
from the beginning: a job that fills the disk must not look like a lost machine.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tpu_agent.child import Child
from tpu_agent.jobs.container import CAUSES, Container, machine_stops
from tpu_agent.jobs.environment import Environment, Harmful, SetupError
from tpu_agent.jobs.identity import Identity, kill_all
from tpu_agent.jobs.queue import NEEDS_ROOT, Outcome, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket, Conflict
from tpu_core.google import GoogleError
from tpu_core.lease import SURE
from tpu_core.records import Unreadable, dump, load, replace_file

MARK = "TPU_STACK_TRY"
"""A variable of each process of an attempt, by which all of them are found."""
_PROC = Path("/proc")
_PAUSE = 0.02
_PLACE = 4096
_MOST_SAID = 300
_FULL = 16 << 20


class Attempt:
    """The folder of an attempt."""

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not be there yet."""
        self.folder = folder
        self.log = folder / "log"
        self.container = Container(folder)
        self._child: Child | None = None

    def prepare(self, content: Mapping[str, Any]) -> None:
        """Write what the supervisor reads, unless it is there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        if not self.is_prepared:
            for name in ("heartbeat", "end", "ended"):
                (self.folder / name).write_bytes(b" " * _PLACE)
            mark = f"{content['job']}-{uuid.uuid4().hex}"
            replace_file(self.folder / "try.json", dump({**content, "mark": mark}))

    def content(self) -> dict[str, Any]:
        """Return what to run."""
        return dict(json.loads((self.folder / "try.json").read_text("utf-8")))

    def start(self, program: Path) -> None:
        """Start the supervisor with the agent's program, unless one runs. It outlives this process.

        Raises:
            OSError: if no process can be made.
        """
        environment = {**os.environ, MARK: self.content()["mark"]}
        command = [sys.executable, str(program), "try", str(self.folder)]
        # A process that asks whether it runs has its lock for a moment.
        while not self._supervisor().start(1, command, environment) and not self.was_started:
            time.sleep(_PAUSE)

    def claim(self) -> bool:
        """Return whether this process is the attempt's first supervisor."""
        try:
            (self.folder / "started").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    @property
    def is_prepared(self) -> bool:
        """Return whether this machine has what is needed to run it."""
        return (self.folder / "try.json").exists()

    @property
    def was_started(self) -> bool:
        """Return whether a supervisor has ever run it."""
        return (self.folder / "started").exists()

    def is_running(self) -> bool:
        """Return whether its supervisor is alive, also that of another runner."""
        return self._supervisor().running()

    def beat(self, now: float) -> None:
        """Tell the supervisor that the machine had the TPU at that moment."""
        self._put("heartbeat", f"{now:020.3f}".encode())

    def last_beat(self) -> float | None:
        """Return the last such moment."""
        try:
            return float((self.folder / "heartbeat").read_text("ascii"))
        except (OSError, ValueError):
            return None

    def end(self, why: str, said: str = "", code: int | None = None) -> None:
        """Have the supervisor end the attempt; the first reason counts."""
        if self.is_to_end() is None:
            self._put("end", dump(brief(Outcome(why, code, said))))

    def is_to_end(self) -> Outcome | None:
        """Return why the attempt is to end, or None."""
        return self._outcome("end")

    def finish(self, outcome: Outcome) -> None:
        """Say how it ended."""
        self._put("ended", dump(brief(replace(outcome, image=self.container.image))))

    def ended(self) -> Outcome | None:
        """Return how it ended, or None."""
        return self._outcome("ended")

    def outcome(self) -> Outcome | None:
        """Return how it ended; None while it runs.

        If the supervisor was killed before it could say so, the machine ended.
        """
        if (ended := self.ended()) is not None or self.is_running():
            return ended
        # It may have ended between the two looks.
        lost = Outcome("preempted", None, "its VM was restarted", self.container.image)
        return self.ended() or lost

    def ask_to_end(self) -> None:
        """Send SIGTERM to every process of the attempt but this one."""
        for process in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)

    def kill(self, seconds: float = 5.0) -> bool:
        """Kill every process of the attempt, also what has left its session, and its container.

        Returns:
            False if one is left after that time: the kernel ends none that waits for a driver.
        """
        end, empty = time.monotonic() + seconds, 0
        # A process has no environment for a moment, while it becomes another program: look twice.
        while empty < 2:
            kill_all()
            found = self._others()
            if found and time.monotonic() >= end:
                return False
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            empty = 0 if found else empty + 1
            self.is_running()  # Buries it, if it is a child of this process.
            if empty < 2:
                time.sleep(_PAUSE if found else _PAUSE / 10)
        # After its client, which might still be starting it.
        return self.container.end()

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _others(self) -> set[int]:
        """Return the attempt's processes but this one and the shell that keeps its exit code."""
        return _marked(self.content()["mark"]) - {os.getpid(), os.getppid()}

    def _supervisor(self) -> Child:
        if self._child is None:
            self._child = Child(self.folder)
        return self._child

    def _put(self, name: str, data: bytes) -> None:
        """Write over a file that has its place already, at once."""
        with (self.folder / name).open("r+b", buffering=0) as file:
            file.write(data.ljust(_PLACE))

    def _outcome(self, name: str) -> Outcome | None:
        try:
            return load(Outcome, (self.folder / name).read_bytes())
        except (OSError, Unreadable):
            return None


def any_running(folder: Path) -> bool:
    """Return whether any attempt runs whose folder is in `folder`."""
    return any(Attempt(path.parent).is_running() for path in folder.glob("*/try.json"))


def printable(text: str) -> str:
    """Return a text with escapes for what is not text, such as in the name of a file."""
    return text.encode(errors="backslashreplace").decode()


def brief(outcome: Outcome) -> Outcome:
    """Return an outcome with as much text as records and an object's metadata may have."""
    return replace(outcome, said=printable(outcome.said)[:_MOST_SAID])


def why_full(folder: Path) -> str:
    """Return that the disk of a folder is full, for people; empty if it is not."""
    return "the VM's disk is full" if shutil.disk_usage(folder).free < _FULL else ""


def _marked(mark: str) -> set[int]:
    """Return the living processes whose environment has the mark."""
    entry, found = f"{MARK}={mark}".encode(), set()
    for path in _PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            # That of a zombie is empty.
            if entry in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


# Between two pieces; a reader sees a line a little later. It doubles after so many of them, so that
# the log of a week has thousands of objects, not a million.
PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PIECES = 600
_LONGEST = 4 << 20
# fallocate(2): free the blocks, and keep the file's length.
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


class Shipping:
    """Brings the log of one attempt to the bucket, in pieces that never change.

    A piece's name is its offset, so that a runner which continues after a killed one writes every
    byte once.
    """

    def __init__(self, store: Bucket, log: Path, job: str, number: int) -> None:
        """Ship `log`, of the job's try of that number."""
        self._store, self._log, self._job, self._number = store, log, job, number
        self._offset: int | None = None
        self._pieces = 0
        self._next = 0.0

    def ship(self, now: float) -> None:
        """Write what is new, if it is time to. Raises GoogleError."""
        if (now >= self._next or self._size() - (self._offset or 0) >= _LONGEST) and self._one():
            pause = PAUSE * 2.0 ** (self._pieces // _PIECES)
            self._next = now + min(pause, _LONGEST_PAUSE)

    def finish(self) -> None:
        """Write all that is left. Raises GoogleError."""
        while self._one():
            pass

    def _one(self) -> bool:
        """Write a piece; return whether there was anything to write."""
        if self._offset is None:
            self._offset = self._shipped()
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_LONGEST)
        except FileNotFoundError:
            return False
        if not data:
            return False
        path = paths.piece(self._job, self._number, self._offset)
        try:
            self._store.write(path, data, generation=0)
        except Conflict:
            # A call that seemed to fail had worked, maybe with less.
            before, self._offset = self._offset, self._shipped()
            if self._offset == before:
                # Or it is an object that holds no byte, and nothing of this log.
                self._store.write(path, data)
            return True
        self._offset += len(data)
        self._pieces += 1
        self._free()
        return True

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _shipped(self) -> int:
        """Return how much of the log is in the bucket, whatever else is there."""
        found, size = [0], self._size()
        for item in self._store.items(paths.logs(self._job, self._number)):
            offset = paths.offset_of(item.path)
            if offset is not None and offset + item.size <= size:
                found.append(offset + item.size)
        self._pieces = len(found)
        return max(found)

    def _free(self) -> None:
        """Give the disk back what is in the bucket."""
        how = _PUNCH_HOLE | _KEEP_SIZE
        with contextlib.suppress(OSError, AttributeError), self._log.open("r+b") as file:
            length = ctypes.c_int64(self._offset or 0)
            ctypes.CDLL(None).fallocate(file.fileno(), how, ctypes.c_int64(0), length)


_LOOK = 0.1
# Between SIGTERM and SIGKILL.
_GRACE = 10.0
_LEASE_SLACK = 5.0
# A machine that goes down signals all processes at once: if that ended a program, the supervisor
# knows this much later.
_TOLD_WITHIN = 1.0
_SIGNALLED = 128


_GOES_DOWN = Outcome("preempted", said="its VM shuts down")


class Ended(Exception):
    """The try is to end, and what it ran has been ended."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


def now() -> float:
    """Return seconds since the boot, with those that the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def supervise(folder: Path, store: Callable[[str], Bucket], who: Identity) -> None:
    """Run the attempt in a folder as `who`, unless it was run; `store` opens a bucket."""
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
        outcome = Outcome("setup", 1, f"the job could not start: {type(error).__name__}: {error}")
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
    """Runs the commands of an attempt."""

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
        environment = Environment(
            folder, self._spec, self._content, self._call, self._who.own, self._who.take
        )
        try:
            if self._spec.image and not self._who.is_root:
                raise SetupError(NEEDS_ROOT.format("--image", "this machine", "pulumi up"))
            self._who.enter(self._check)
            if how := environment.make(self._store):
                say(how)
            if self._spec.image:
                self._pull()
            if self._spec.timeout is not None:
                self._deadline = now() + self._spec.timeout
            variables = environment.variables()
            code = self._call(self._command(variables), variables)
        except Ended as ended:
            if ended.outcome.why != "preempted":
                self._keep_artifacts(environment.artifacts)
            return ended.outcome
        except (SetupError, Harmful, GoogleError) as error:
            return Outcome("setup", 1, str(error))
        self._keep_artifacts(environment.artifacts)
        known = {127: "the command doesn't exist on the VM (exit code 127)"}
        return Outcome("exited", code, (CAUSES if self._spec.image else known).get(code, ""))

    def _pull(self) -> None:
        project, container = self._content["project"], self._attempt.container
        container.pull(self._spec.image, project, self._call, self._who.token)
        say(f"container image {container.image}")

    def _command(self, variables: Mapping[str, str]) -> list[str]:
        command = ["/bin/bash", "-c", self._spec.command]
        if not self._spec.image:
            return command
        has_chips = self._content["is_here"]
        return self._attempt.container.command(command, variables, has_chips=has_chips)

    def _call(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        """Run a command to its end; return its exit code. Raises Ended if the attempt is to end."""
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
        if code and self._spec.image and machine_stops():
            raise Ended(_GOES_DOWN)
        return code

    def _check(self) -> None:
        """Raise Ended if the attempt is to end."""
        if outcome := self._why_to_end():
            raise Ended(outcome)

    def _why_to_end(self) -> Outcome | None:
        if self._deadline is not None and now() > self._deadline:
            return Outcome("timed-out")
        if self._goes_down:
            return _GOES_DOWN
        beat = self._attempt.last_beat()
        if beat is not None and now() > beat + SURE + _LEASE_SLACK:
            return Outcome("preempted", said="the runner of this VM has ended")
        return self._attempt.is_to_end()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # Asked first, so that it can save; what is left after the grace is killed.
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
                say(f"the artifact {path.name} could not be uploaded: {error}")
