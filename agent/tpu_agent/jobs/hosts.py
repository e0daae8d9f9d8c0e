"""Have all hosts of a slice run the same try, where the framework needs a process on each.

Worker 0 has the job, its lease, its record and its log. It writes into the bucket which try runs
on all hosts; the others follow that, and write that it runs there and how it has ended. A try that
fails on one of them, or of which one tells nothing, ends on all: libtpu and the frameworks would
wait for that host.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tpu_agent.jobs.attempt import Attempt, any_running
from tpu_agent.jobs.environment import Tpu, content_of
from tpu_agent.jobs.queue import ON_EACH_HOST, RUNNING, Job, Outcome, Queue, Spec
from tpu_core import lease, paths, records, times
from tpu_core.bucket import Bucket, Item
from tpu_core.contract import LOST_HOST
from tpu_core.google import GoogleError

_LOOK, _FAILURE_LOOK = 2.0, 5.0
# How often a host says that the attempt runs there, and for how long it may be silent: its machine
# may still be starting.
BEAT = 60.0
_SILENCE = 600.0
_RUNS = "runs"
STILL = records.stamped(vars(Outcome(_RUNS)))
"""What a host reports of an attempt that runs there."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class World:
    """What a container or a host gives, which tests replace.

    Attributes:
        environment: of this process.
        start: starts an attempt's supervisor.
        sleep: lets time pass.
        time: seconds since the epoch.
        say: writes a line to Vertex AI's log or the machine's journal.
    """

    environment: Mapping[str, str]
    start: Callable[[Attempt], None]
    sleep: Callable[[float], None]
    time: Callable[[], float]
    say: Callable[[str], None]


@dataclass(frozen=True)
class Announced:
    """Which try is to run on all hosts."""

    job: str
    number: int


def runs_on_all(tpu: Tpu, spec: Spec) -> bool:
    """Return whether a job runs on other hosts than worker 0, too."""
    return tpu.is_here and len(tpu.hosts) > 1 and spec.framework in ON_EACH_HOST


def announce(store: Bucket, tpu: str, job: Job) -> None:
    """Have the other hosts run a job's last attempt. Raises GoogleError."""
    what = records.stamped(vars(Announced(job.name, len(job.tries))))
    store.write(paths.on_all_hosts(tpu), b"", summary=what)


class Reports:
    """What the other hosts of a slice report of an attempt.

    Args:
        store: the bucket.
        folder: where they report.
        now: seconds.
    """

    def __init__(self, store: Bucket, folder: str, now: Callable[[], float]) -> None:
        self._store, self._folder, self._now = store, folder, now
        self._next_look = 0.0
        self._since: float | None = None

    def look(self, hosts: int) -> Outcome | None:
        """Return the same as `failure` from time to time, and nothing in between."""
        if self._now() < self._next_look:
            return None
        self._next_look = self._now() + _FAILURE_LOOK
        return self.failure(hosts)

    def failure(self, hosts: int) -> Outcome | None:
        """Return how it failed on one of so many `hosts`, if it did. Raises GoogleError.

        A host that only lost another one is the answer where no other is.
        """
        # While the bucket does not answer, the others can't be heard: that time does not count.
        before, self._since = self._since, None
        items = self._store.items(self._folder)
        reports = {item.path.removeprefix(self._folder): item for item in items}
        now = self._now()
        self._since = now if before is None else before
        found = None
        for host in range(1, hosts):
            if outcome := _judged(reports.get(f"{host}.json"), now - self._since):
                failed = replace(outcome, said=f"host {host} of the TPU: {outcome.said}")
                if failed.why != LOST_HOST:
                    return failed
                found = found or failed
        return found


def _judged(report: Item | None, followed: float) -> Outcome | None:
    """Return how a host failed by its report, for which it has been asked so many seconds."""
    reported = _told(Outcome, report)
    if reported and reported.why != _RUNS:
        return _failed(reported)
    return _lost(reported, min(report.age, followed) if report and reported else followed)


def _told(kind: type[_T], item: Item | None) -> _T | None:
    """Return what an object's metadata tells; None if that is nothing or damaged."""
    with contextlib.suppress(records.Unreadable):
        return records.sound(kind, item.summary) if item else None
    return None


def _failed(reported: Outcome) -> Outcome | None:
    if reported.why == "stopped" or (reported.why, reported.code) == ("exited", 0):
        return None
    return replace(reported, said=reported.said or f"exit code {reported.code}")


def _lost(reported: Outcome | None, silence: float) -> Outcome | None:
    if silence < _SILENCE:
        return None
    what = "has stopped reporting" if reported else "has not started"
    where = "see its serial port, or `journalctl` there"
    return Outcome("preempted", None, f"it {what} for {_SILENCE / 60:g} minutes; {where}")


class Host:
    """Another host of a slice than worker 0, which runs what that has all hosts run."""

    def __init__(
        self,
        store: Bucket,
        tpu: str,
        number: int,
        ready: Callable[[], Tpu | None],
        folder: Path,
        world: World,
    ) -> None:
        self._store, self._tpu, self._number, self._ready = store, tpu, number, ready
        self._folder, self._world = folder, world
        self._queue = Queue(store, world.say)
        self._beaten = -_SILENCE

    def step(self) -> None:
        """Run what is to run now, to its end here. Raises OSError if that can't be asked."""
        job = self._announced()
        tpu = self._ready() if job is not None else None
        if job is None or tpu is None:
            self._world.sleep(_LOOK)
            return
        content = content_of(job, self._store.bucket, replace(tpu, worker=self._number))
        host = str(self._number)
        self._world.say(f"{job.name} runs on host {host} (attempt {job.tries[-1].number})")
        self._beaten = -_SILENCE
        Follower(
            self._store, self._folder, self._world, host, lambda _: content, self._tell, self._beat
        ).run_try(job)

    def _beat(self, job: Job) -> None:
        """Write that an attempt runs here, from time to time."""
        now = self._world.time()
        # The clock may be set.
        if abs(now - self._beaten) < BEAT:
            return
        try:
            self._store.write(self._path(job, "json"), b"", summary=STILL)
        except GoogleError as error:
            self._world.say(f"retrying: {error}")
        else:
            self._beaten = now

    def _tell(self, job: Job, attempt: Attempt, outcome: Outcome) -> None:
        """Write how an attempt has ended here, again and again until it is written."""
        while True:
            try:
                with attempt.log.open("rb") as file:
                    self._store.upload(self._path(job, "log"), file, attempt.log.stat().st_size)
                report = records.stamped(vars(outcome))
                self._store.write(self._path(job, "json"), b"", summary=report)
            except GoogleError as error:
                self._world.say(f"retrying: {error}")
                self._world.sleep(_LOOK)
            else:
                how = outcome.said or outcome.why
                self._world.say(f"{job.name} has ended on host {self._number} ({how})")
                return

    def _announced(self) -> Job | None:
        """Return the job whose last attempt is to run on this host now."""
        found = _told(Announced, self._store.look(paths.on_all_hosts(self._tpu)))
        job = self._queue.read(found.job) if found else None
        if found is None or job is None or job.state != RUNNING or job.stop:
            return None
        if len(job.tries) != found.number or self._has_ended(job):
            return None
        return job if self._is_alive(job) else None

    def _is_alive(self, job: Job) -> bool:
        """Return whether it is worker 0 of this TPU that runs it, not one that is gone with it."""
        held = self._store.look(paths.lease(self._tpu))
        holder = held.summary.get("id") if held and held.age <= lease.DURATION else None
        return holder == job.tries[-1].runner

    def _has_ended(self, job: Job) -> bool:
        report = _told(Outcome, self._store.look(self._path(job, "json")))
        return report is not None and report.why != _RUNS

    def _path(self, job: Job, kind: str) -> str:
        return f"{paths.hosts(job.name, job.tries[-1].number)}{self._number}.{kind}"


class Follower:
    """Runs a job on another host of a slice than worker 0, attempt by attempt, until it is over.

    The record is worker 0's: this host runs the same program while an attempt runs there.
    Its output goes into the log of this process (Vertex AI's, or the machine's journal), its
    artifacts into a folder of its own.

    Args:
        store: the bucket.
        folder: of the attempts on this host.
        world: the host.
        worker: its number.
        content_of: returns what this host runs of a job's last attempt.
        tell: is told how an attempt has ended here, while its folder is still there.
        beat: is told every two seconds that an attempt runs here.
    """

    def __init__(
        self,
        store: Bucket,
        folder: Path,
        world: World,
        worker: str,
        content_of: Callable[[Job], Mapping[str, Any]],
        tell: Callable[[Job, Attempt, Outcome], None] = lambda job, attempt, outcome: None,
        beat: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._folder, self._world, self._worker = folder, world, worker
        self._content_of, self._report, self._beat = content_of, tell, beat
        self._queue = Queue(store, world.say)
        self._taken = False

    def take_away(self) -> None:
        """Know that the container ends."""
        self._taken = True

    def run(self, name: str) -> int:
        """Run the tries of the job of that name; return the container's exit code."""
        ran = 0
        while not self._taken and (job := self._read(name)) is not None and not job.is_over:
            if job.state == RUNNING and len(job.tries) > ran:
                ran = len(job.tries)
                self.run_try(job)
            else:
                self._world.sleep(_LOOK)
        ended = self._read(name)
        return ended.code if ended is not None and ended.code is not None else 1

    def _read(self, name: str) -> Job | None:
        while not self._taken:
            try:
                return self._queue.read(name)
            except GoogleError as error:
                self._world.say(f"retrying: {error}")
                self._world.sleep(_LOOK)
        return None

    def run_try(self, job: Job) -> None:
        """Run a job's last attempt, or continue it, until it has ended here."""
        attempt = Attempt(self._folder / f"{job.name}-{job.tries[-1].number}")
        attempt.prepare({**self._content_of(job), "artifacts": f"host-{self._worker}/"})
        reported = 0
        if attempt.was_started:
            reported = attempt.log.stat().st_size
        else:
            self._world.start(attempt)
        while (outcome := attempt.outcome()) is None:
            self._beat(job)
            reported = self._tell(attempt, reported)
            now = self._read(job.name)
            if self._taken or now is None or not _goes_on(now, job):
                attempt.end("stopped")
            self._world.sleep(_LOOK)
        while not attempt.kill() and not self._taken:
            self._world.sleep(_LOOK)
        self._tell(attempt, reported)
        self._report(job, attempt, outcome)
        attempt.remove()

    def _tell(self, attempt: Attempt, reported: int) -> int:
        """Bring what the attempt wrote since into this log; return how much that is by now."""
        with attempt.log.open("rb") as file:
            file.seek(reported)
            new = file.read()
        if new:
            self._world.say(new.decode(errors="replace").rstrip("\n"))
        return reported + len(new)


def _goes_on(now: Job, job: Job) -> bool:
    """Return whether the attempt that `job` began is the one that runs."""
    return now.state == RUNNING and not now.stop and len(now.tries) == len(job.tries)


# The hosts of a spot slice end when another one is gone for good.
#
# Google recreates no slice of which a machine was preempted, and takes no other machine along
# (docs.cloud.google.com/tpu/docs/failure-recovery, 2026-11): the rest costs money and can train
# nothing. So each host keeps a heartbeat in the bucket, which it may write anyway, and looks at
# those of the others. A stopped machine costs what stays attached to it, such as its disk (2026-11:
# docs.cloud.google.com/compute/docs/instances/suspend-stop-reset-instances-overview); that its
# chips are not among that is our reading. The stack's group does not repair it
# (`defaultActionOnFailure`), and `tpustack recover` recreates the whole slice.
#
# What can't be told ends nothing: no host is silent while the bucket does not answer. Hosts that
# lose each other all end, which is safe.

# Hosts of a new slice come at different times: each waits ten minutes for its grants, ten for the
# locks of apt, and installs the framework.
_START = 1800.0
# A job has ten seconds after SIGTERM; then its record and its log go to the bucket.
_GRACE, _REPORT = 30.0, 5.0


class Peers:
    """The other hosts of a slice, as this one sees them.

    Args:
        store: the bucket.
        tpu: the slice.
        number: this host.
        count: how many hosts the slice has.
        now: seconds, without those in which the machine stood still: no host was seen then.
    """

    def __init__(
        self, store: Bucket, tpu: str, number: int, count: int, now: Callable[[], float]
    ) -> None:
        self._store, self._now = store, now
        self._own = paths.beat(tpu, number)
        self._beats = {paths.beat(tpu, each): each for each in range(count) if each != number}
        self._folder = paths.beats(tpu)
        self._last: dict[str, int] = {}
        self._silence = dict.fromkeys(self._beats, 0.0)
        self._seen: set[str] = set()
        self._heard: float | None = None

    def look(self) -> str:
        """Say that this host is alive; return why the slice is lost, or nothing. Raises OSError."""
        # While the bucket does not answer, the others can't be heard: that time does not count.
        before, self._heard = self._heard, None
        self._store.write(self._own, b"")
        found = {item.path: item.generation for item in self._store.items(self._folder)}
        self._heard = self._now()
        for path in self._beats:
            self._silence[path] += 0.0 if before is None else self._heard - before
        lost = [why for path in self._beats if (why := self._judge(path, found.get(path, 0)))]
        return "; ".join(lost)

    def _judge(self, path: str, beat: int) -> str:
        # What is there at first may be from a host of the slice before this one.
        if beat != self._last.setdefault(path, beat):
            self._last[path] = beat
            self._seen.add(path)
            self._silence[path] = 0.0
        silence = self._silence[path]
        if silence < (_SILENCE if path in self._seen else _START):
            return ""
        what = "has been silent" if path in self._seen else "has not come up"
        return f"host {self._beats[path]} {what} for {silence / 60:.0f} minutes"


def turn_host_off(
    store: Bucket,
    folder: Path,
    name: str,
    why: str,
    say: Callable[[str], None],
    turn_off: Callable[[], None],
) -> None:
    """Let the jobs on this host save, leave a note under `limits/`, and turn the machine off.

    Args:
        store: the bucket.
        folder: of the attempts.
        name: the machine.
        why: the slice is lost.
        say: writes a line to the journal and the serial port.
        turn_off: is always called. Raises OSError.
    """
    text = f"{name} turns itself off, because its spot slice is lost: {why}"
    say(f"{text}. `tpustack recover` recreates it")
    try:
        deadline, had_any = time.monotonic() + _GRACE, False
        while True:
            # The runner may have been about to start one when it was told to begin none.
            for path in folder.glob("*/try.json"):
                had_any = True
                Attempt(path.parent).end("preempted", why)
            if not any_running(folder) or time.monotonic() >= deadline:
                break
            time.sleep(0.1)
        if had_any:
            time.sleep(_REPORT)
        at = times.timestamp(time.time())
        store.write(f"limits/{at}-{name}.txt", f"{at} {text}\n".encode())
    except Exception as error:  # Whatever it is: the machine costs.
        say(f"{name} ends all the same: {error}")
    turn_off()
