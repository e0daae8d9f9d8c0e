"""Choose, start, watch and end the jobs of one TPU, a step at a time.

What to do follows from what the bucket and the folder of the current try say, so that the runner
may be killed at any point. It changes a job's record only while it holds the TPU's lease, and only
from what it has just read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from tpu_agent.jobs import hosts, queue
from tpu_agent.jobs.attempt import Attempt, Shipping, why_full
from tpu_agent.jobs.environment import Tpu, content_of, kept_folder
from tpu_agent.jobs.kept import Kept
from tpu_agent.jobs.queue import FAILED, QUEUED, RUNNING, SUCCEEDED, Job, Outcome, Queue
from tpu_core import lease, paths
from tpu_core.bucket import Bucket
from tpu_core.google import Call, Json, message
from tpu_core.tpu import Place, look_up, phase_of, start, state_of

# The queue is looked at when the bell has rung, and at least so often.
_LOOK = 30.0
_BELL = 1.0
# Between two looks at a TPU that a job waits for.
_TPU_LOOK = 10.0


@dataclass(frozen=True)
class World:
    """What the runner needs besides the bucket, which tests replace.

    Attributes:
        now: seconds, also those in which the machine was suspended.
        time: seconds since the epoch, for people.
        say: writes a line to the journal and the serial port.
        start: starts an attempt's supervisor.
        tell: reports how a job has ended; it never fails.
    """

    now: Callable[[], float]
    time: Callable[[], float]
    say: Callable[[str], None]
    start: Callable[[Attempt], None]
    tell: Callable[[str], None] = lambda text: None


class Runner:
    """Runs the jobs of one TPU on this machine."""

    def __init__(
        self, store: Bucket, me: lease.Holder, tpu: str, tpus: Tpus, folder: Path, world: World
    ) -> None:
        self._store, self._me, self._tpu, self._tpus = store, me, tpu, tpus
        self._folder, self._world = folder, world
        folder.mkdir(parents=True, exist_ok=True)
        self._queue = Queue(store, self._say_once)
        right = "runs this TPU's jobs"
        self._lease = lease.Lease(store, paths.lease(tpu), me, world.now, world.say, right)
        self._current: Current | None = None
        self._bell: int | None = -1
        self._next_bell = self._next_look = 0.0
        self._said = ""

    def step(self) -> None:
        """Do what is to be done now. Raises OSError if the bucket or the TPU can't be asked."""
        try:
            held = self._lease.hold()
        except OSError:
            self._drop()
            raise
        if not held:
            self._drop()
        elif self._current is not None:
            self._current.beat(self._lease.renewed)
            self._watch(self._current)
        elif self._rang() or self._world.now() >= self._next_look:
            self._look()

    def _drop(self) -> None:
        """End the current try and leave its record alone: it is another machine's by now."""
        if self._current is None:
            return
        why = "another VM may use the TPU now"
        self._world.say(f"{self._current.job.name} stopped on this VM: {why}")
        self._current.attempt.end("preempted", why)
        self._current.attempt.kill()
        self._current = None
        self._next_look = 0.0

    def _rang(self) -> bool:
        """Return whether something has changed; ask at most once a second."""
        if self._world.now() < self._next_bell:
            return False
        self._next_bell = self._world.now() + _BELL
        found = self._store.look(paths.BELL)
        before, self._bell = self._bell, found.generation if found else None
        return before != self._bell

    def _look(self) -> None:
        """Take over what earlier runners left, end what waits in vain, start what is next."""
        self._next_look = self._world.now() + _LOOK
        jobs = self._queue.summaries()
        for name, job in jobs.items():
            mine = job["state"] == RUNNING and job["tpu"] == self._tpu
            if mine and self._tried(name, self._take_over):
                return
        for name, why in queue.in_vain(jobs):
            self._tried(name, partial(self._give_up, why))
        for name in queue.waiting(jobs):
            if self._tried(name, self._begin):
                return

    def _tried(self, name: str, what: Callable[[str], bool]) -> bool:
        """Return what a step with a job returns; one that can't be made stops no other job's."""
        try:
            return what(name)
        except OSError:
            raise
        except Exception as error:  # Of whatever kind: no record may end a look.
            self._say_once(f"{name} is skipped: {type(error).__name__}: {error}")
            return False

    def _take_over(self, name: str) -> bool:
        """Continue an attempt of this machine; give up one whose machine is gone.

        Returns:
            False if nothing can be done for it.
        """
        job = self._queue.read(name)
        if job is None or job.state != RUNNING:
            return False
        self._next_look = 0.0
        current = Current(job, self._folder, self._store, self._world.now)
        mine = job.tries[-1].runner == self._me.id
        if mine and current.attempt.is_prepared:
            self._current = current
            if not current.attempt.was_started:
                self._world.start(current.attempt)
            return True
        # Or this machine has lost the TPU to that one, and has it back.
        why = "it did not start" if mine else f"its VM {job.tries[-1].machine} is gone"
        self._end(job, Outcome("preempted", None, why))
        return True

    def _give_up(self, why: str, name: str) -> bool:
        def fail(job: Job) -> Job | None:
            return job.over(FAILED, self._world.time(), why) if job.state == QUEUED else None

        self._next_look = 0.0
        if failed := self._change(name, fail):
            self._world.say(f"{name} has failed ({why})")
            self._world.tell(_report(failed, self._store.bucket))
        return True

    def _begin(self, name: str) -> bool:
        """Start a job; return False if it can't be started and the next one may."""
        if full := why_full(self._folder):
            # What could be built again is not what jobs wait for.
            with contextlib.suppress(OSError):
                Kept(kept_folder(self._folder)).trim()
            full = why_full(self._folder)
        tpu = None if full else self._tpus.ready()
        if tpu is None:
            self._say_once(f"{name} waits: {full or self._tpus.why_not}")
            if not full:
                self._tpus.wake()
            self._next_look = self._world.now() + _TPU_LOOK
            return True
        # An old word of the bucket is not enough to start on.
        if not self._lease.hold(lease.FRESH):
            return True
        job = self._change(name, self._started)
        if job is None:
            return False
        current = Current(job, self._folder, self._store, self._world.now)
        content = content_of(job, self._store.bucket, tpu)
        if everywhere := hosts.runs_on_all(tpu, job.spec):
            self._be_sure()
            hosts.announce(self._store, self._tpu, job)
        current.attempt.prepare({**content, "hosts": len(tpu.hosts) if everywhere else 1})
        current.beat(self._lease.renewed)
        self._world.say(f"{name} starts (attempt {job.tries[-1].number})")
        self._current = current
        self._world.start(current.attempt)
        return True

    def _started(self, job: Job) -> Job | None:
        if job.state != QUEUED:
            return None
        return job.started(self._me.id, self._me.name, self._tpu, self._world.time())

    def _watch(self, current: Current) -> None:
        current.shipping.ship(self._world.now())
        if (outcome := current.attempt.outcome()) is not None:
            self._finish(current, outcome)
            return
        if self._rang() or self._world.now() >= self._next_look:
            self._next_look = self._world.now() + _LOOK
            job = self._queue.read(current.job.name)
            if job is None or job.stop:
                current.attempt.end("stopped")
        current.follow_tpu(self._world.now(), self._tpus.why_lost)
        current.follow_hosts()

    def _finish(self, current: Current, outcome: Outcome) -> None:
        """Bring everything to the bucket, then say that the attempt is over."""
        if not current.attempt.kill():
            # It has the TPU. The lease is kept, so that no other job fails for that.
            what = "a process or container that can't be killed: restart the VM"
            self._say_once(f"{current.job.name} has {what}")
            return
        if outcome.why == "exited" and outcome.code:
            why = self._tpus.why_lost(current.created)
            outcome = replace(outcome, why="preempted", said=why) if why else outcome
        current.shipping.finish()
        if not self._lease.hold(lease.FRESH):
            return
        self._end(current.job, outcome)
        current.attempt.remove()
        self._current = None
        self._next_look = 0.0

    def _end(self, job: Job, outcome: Outcome) -> None:
        """Write what becomes of a job whose last attempt has ended, unless it was done."""
        tries = len(job.tries)

        def end(now: Job) -> Job | None:
            if now.state != RUNNING or len(now.tries) != tries:
                return None
            return now.after_try(outcome, self._world.time())

        if (ended := self._change(job.name, end)) is not None:
            why = f" ({ended.reason})" if ended.reason else ""
            self._world.say(f"{job.name} is {ended.state}{why}")
            if ended.is_over:
                self._world.tell(_report(ended, self._store.bucket))

    def _change(self, name: str, how: Callable[[Job], Job | None]) -> Job | None:
        """Change a record as `Queue.change` does, on a lease that is not old. Raises OSError."""

        def surely(job: Job) -> Job | None:
            self._be_sure()
            return how(job)

        return self._queue.change(name, surely)

    def _be_sure(self) -> None:
        """Raise OSError if this machine has stood still since it asked for the lease."""
        if not self._lease.is_sure:
            raise OSError("the lease has expired")

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._world.say(text)


def _report(job: Job, bucket: str) -> str:
    """Return what is reported of a job that has ended for good."""
    state = "has succeeded" if job.state == SUCCEEDED else f"is {job.state} (exit code {job.code})"
    last = job.tries[-1].started if job.tries else None
    ran = f" after {((job.ended or last) - last) / 60:.1f} min" if last is not None else ""
    ran += f" in its attempt {len(job.tries)}" if len(job.tries) > 1 else ""
    reason = f": {job.reason}" if job.reason else ""
    return f"{job.name} {state}{ran}{reason}\ngs://{bucket}/{paths.folder(job.name)}"


class Current:
    """A try of a job: its folder here, and its log on the way to the bucket."""

    def __init__(self, job: Job, folder: Path, store: Bucket, now: Callable[[], float]) -> None:
        """Use the last attempt of `job`, whose folder is in `folder`."""
        number = job.tries[-1].number
        self.job = job
        self.attempt = Attempt(folder / f"{job.name}-{number}")
        self.shipping = Shipping(store, self.attempt.log, job.name, number)
        self._reports = hosts.Reports(store, paths.hosts(job.name, number), now)
        self._tpu_look = 0.0
        self._beat: float | None = None

    def follow_tpu(self, now: float, why_lost: Callable[[str], str | None]) -> None:
        """End it if its TPU is gone, at a look from time to time. Raises OSError."""
        if now < self._tpu_look:
            return
        self._tpu_look = now + _TPU_LOOK
        if why := why_lost(self.created):
            self.attempt.end("preempted", why)

    def follow_hosts(self) -> None:
        """End it if it failed on another host, or one tells nothing. Raises GoogleError."""
        if self._hosts > 1 and (failed := self._reports.look(self._hosts)):
            self.attempt.end(failed.why, failed.said, failed.code)

    @cached_property
    def _hosts(self) -> int:
        return int(self.attempt.content().get("hosts", 1))

    def beat(self, renewed: float) -> None:
        """Tell the supervisor when the machine last had the TPU for sure."""
        if renewed != self._beat:
            self._beat = renewed
            self.attempt.beat(renewed)

    @property
    def created(self) -> str:
        """When the TPU was made that it runs on."""
        return str(self.attempt.content()["created"])


class Tpus:
    """Looks the TPU up.

    Args:
        place: where it is.
        name: what it is called.
        call: calls Google as the machine's account.
        want: says that a job wants a TPU that is gone: a limit may have deleted it.
        is_here: whether this machine is one of its workers.
    """

    def __init__(
        self, place: Place, name: str, call: Call, want: Callable[[], None], *, is_here: bool
    ) -> None:
        self._want, self._has_wanted = want, False
        self._place, self._name, self._call, self._is_here = place, name, call, is_here
        self.why_not = ""
        self.why_ending = ""
        """Why this machine is about to turn itself off, if it is: nothing may begin there."""

    def ready(self) -> Tpu | None:
        """Return the TPU; None if it can't be used now, and `why_not`. Raises OSError."""
        if self.why_ending:
            self.why_not = f"the slice {self._name} is lost: {self.why_ending}"
            return None
        place, node = self._node()
        state = str(node.get("state")) if node else "gone"
        if node is None or state != "READY":
            self.why_not = f"the TPU {self._name} is {state}"
            return None
        ends = node.get("networkEndpoints") or []
        return Tpu(
            name=self._name,
            zone=place.zone,
            project=self._place.project,
            hosts=tuple(str(end["ipAddress"]) for end in ends if end.get("ipAddress")),
            created=str(node.get("createTime", "")),
            port=next((int(end["port"]) for end in ends if end.get("port")), Tpu.port),
            is_here=self._is_here,
        )

    def why_lost(self, created: str) -> str | None:
        """Return why the TPU that was made at that time is gone; None if it is there."""
        _, node = self._node()
        if node is None:
            return f"the TPU {self._name} is gone"
        if phase_of(state_of(node)) in ("lost", "deleting"):
            return f"the TPU {self._name} is {node['state']}"
        if node.get("createTime", "") != created:
            return f"the TPU {self._name} was recreated"
        return None

    def wake(self) -> None:
        """Start a TPU that was stopped because nothing ran, or want it back. Raises OSError."""
        place, node = self._node()
        if node is None and not self._has_wanted:
            self._want()
        self._has_wanted = node is None
        if node is not None and node.get("state") == "STOPPED":
            start(self._call, place, self._name, node)

    def _node(self) -> tuple[Place, Json | None]:
        place, status, node = look_up(self._place, self._call, self._name)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {self._name}: {message(node)}")
        return place, node if status == 200 else None
