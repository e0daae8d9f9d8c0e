"""A bucket in memory that keeps Cloud Storage's conditions, and machines in virtual time."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tpu_agent.jobs.attempt import Attempt
from tpu_agent.jobs.environment import Tpu
from tpu_agent.jobs.queue import Outcome, parse
from tpu_agent.jobs.runner import Runner, World
from tpu_core import paths
from tpu_core.bucket import Bucket as Store, Conflict, Item
from tpu_core.google import GoogleError
from tpu_core.lease import SURE, Holder

TPU = Tpu("t", "z", "p", ("10.0.0.2",), "2026-01-01T00:00:00Z")
SLACK = 5.0


class Killed(BaseException):
    """The process ends at this moment."""


@dataclass
class Clock:
    """Virtual seconds."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass
class Thing:
    data: bytes
    generation: int
    metageneration: int
    summary: dict[str, Any]
    changed: float


@dataclass
class Bucket:
    """What all machines see, and what was ever written to the queue."""

    clock: Clock
    things: dict[str, Thing] = field(default_factory=dict)
    count: int = 0
    states: dict[str, list[str]] = field(default_factory=dict)

    def put(self, path: str, data: bytes, summary: Mapping[str, Any] | None) -> int:
        self.count += 1
        self.things[path] = Thing(data, self.count, 1, dict(summary or {}), self.clock.seconds)
        if path.startswith(paths.QUEUE):
            name = paths.job_of(path)
            self.states.setdefault(name, []).append(parse(data, name).state)
        return self.count


class MemoryStore(Store):
    """One machine's way to the bucket.

    Args:
        bucket: the bucket.
        before: is called before each call and after each change, when its answer is on the way. It
            may end the process, lose the answer, or let others go first.
    """

    def __init__(self, bucket: Bucket, before: Callable[[], None] = lambda: None) -> None:
        self.bucket = "b"
        self._there, self._before = bucket, before

    def read(self, path: str) -> tuple[bytes, int] | None:
        self._before()
        thing = self._there.things.get(path)
        return (thing.data, thing.generation) if thing else None

    def look(self, path: str) -> Item | None:
        self._before()
        return self._item(path) if path in self._there.things else None

    def items(self, prefix: str, behind: str = "", *, deep: bool = True) -> Iterator[Item]:
        self._before()
        names = [n for n in sorted(self._there.things) if n.startswith(prefix) and n > behind]
        if not deep:
            names = [name for name in names if "/" not in name.removeprefix(prefix)]
        return iter([self._item(name) for name in names])

    def write(
        self,
        path: str,
        data: bytes,
        *,
        generation: int | None = None,
        metageneration: int | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> int:
        self._before()
        self._check(path, generation)
        if metageneration is not None:
            self._check_summary(path, metageneration)
        text = json.dumps(summary)
        if len(text) > 4096:
            raise GoogleError(400, "the metadata is too large")
        # As JSON has them.
        plain = json.loads(text) if summary is not None else None
        made = self._there.put(path, data, plain)
        self._before()
        return made

    def upload(
        self, path: str, file: IO[bytes], size: int, *, generation: int | None = None
    ) -> None:
        self.write(path, file.read(size), generation=generation)

    def touch(self, path: str, generation: int, summary: Mapping[str, Any]) -> None:
        self._before()
        if path not in self._there.things:
            raise GoogleError(404, path)
        self._check(path, generation)
        thing = self._there.things[path]
        thing.summary, thing.changed = dict(summary), self._there.clock.seconds
        thing.metageneration += 1
        self._before()

    def delete(self, path: str, generation: int) -> None:
        self._before()
        if path in self._there.things:
            self._check(path, generation)
            del self._there.things[path]
        self._before()

    def _check(self, path: str, generation: int | None) -> None:
        there = self._there.things[path].generation if path in self._there.things else 0
        if generation is not None and generation != there:
            raise Conflict(path)

    def _check_summary(self, path: str, metageneration: int) -> None:
        if metageneration != self._there.things[path].metageneration:
            raise Conflict(path)

    def _item(self, path: str) -> Item:
        thing = self._there.things[path]
        age = self._there.clock.seconds - thing.changed
        return Item(
            path, thing.generation, thing.metageneration, len(thing.data), thing.summary, 0.0, age
        )


class Tpus:
    """A TPU that is always ready."""

    why_not = ""

    def ready(self) -> Tpu | None:
        return TPU

    def why_lost(self, created: str) -> str | None:
        return None

    def wake(self) -> None:
        """It never sleeps."""


@dataclass
class Program:
    """A job's process: when it ends by itself, and how."""

    attempt: Attempt
    name: str
    ends: float
    code: int
    lock: int

    @classmethod
    def begun(cls, attempt: Attempt, ends: float, code: int) -> Program:
        """Take the lock, which its supervisor has as long as it lives."""
        lock = os.open(attempt.folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return cls(attempt, attempt.content()["job"], ends, code, lock)


class Machine:
    """A machine with its disk, its processes and at most one runner.

    Args:
        name: its name and id.
        bucket: the bucket.
        disk: its folder.
        length: how long the program of a job runs, and its exit code.
        before: as MemoryStore has it.
    """

    def __init__(
        self,
        name: str,
        bucket: Bucket,
        disk: Path,
        length: Callable[[str], tuple[float, int]],
        before: Callable[[], None],
    ) -> None:
        self.name, self.bucket, self._disk = name, bucket, disk
        self._length, self._before = length, before
        self.programs: list[Program] = []
        self.started: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.runner = self._new_runner()

    def step(self) -> None:
        """Let processes go on, then the runner."""
        self._let_programs_run()
        try:
            self.runner.step()
        except Killed:
            self.runner = self._new_runner()
        except OSError:
            pass

    def reboot(self) -> None:
        """End every process; the disk stays."""
        for program in self.programs:
            os.close(program.lock)
        self.programs = []
        self.runner = self._new_runner()

    def running(self) -> list[str]:
        """Return the jobs whose programs run at this moment."""
        self._let_programs_run()
        return [program.name for program in self.programs]

    def _new_runner(self) -> Runner:
        clock = self.bucket.clock
        world = World(clock.now, clock.now, self.said.append, self._start)
        me = Holder(self.name, self.name)
        store = MemoryStore(self.bucket, self._before)
        tpus: Any = Tpus()
        return Runner(store, me, "t", tpus, self._disk, world)

    def _start(self, attempt: Attempt) -> None:
        if not attempt.claim():
            return
        content = attempt.content()
        length, code = self._length(content["job"])
        self.started.append((content["job"], content["number"]))
        ends = self.bucket.clock.seconds + length
        self.programs.append(Program.begun(attempt, ends, code))
        attempt.log.write_text(f"{content['number']}\n" * 3)

    def _let_programs_run(self) -> None:
        """Do what supervisors do: end what is over, what is to end, what nobody watches."""
        now = self.bucket.clock.seconds
        for program in list(self.programs):
            attempt = program.attempt
            why = attempt.is_to_end() if attempt.folder.exists() else Outcome("preempted")
            if why is None and now > (attempt.last_beat() or now) + SURE + SLACK:
                why = Outcome("preempted")
            if why is None and now >= program.ends:
                why = Outcome("exited", program.code)
            if why is not None:
                self.programs.remove(program)
                if attempt.folder.exists():
                    attempt.finish(why)
                os.close(program.lock)
