"""Two machines and a person share a queue, and faults strike at chosen moments, in virtual time.

A moment is one at which an actor can be interrupted: before a call to the bucket is carried out,
and after it has changed something, before its answer is there. `Scene.moments` counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.unit.agent.jobs.memory import Bucket, Clock, Killed, Machine, MemoryStore
from tpu_agent.jobs.queue import ENDED, RUNNING, STOPPED, Job, Queue, Spec, parse
from tpu_core import paths
from tpu_core.google import GoogleError

_MOST_SECONDS = 5_000.0


class Scene:
    """A queue with its actors.

    Args:
        disk: an empty folder.
        faults: what strikes, by the number of the moment.
        runs: for how many seconds the program of each job runs, and its exit code.
    """

    def __init__(
        self, disk: Path, faults: Mapping[int, Fault], runs: Mapping[str, tuple[float, int]]
    ) -> None:
        self.bucket, self._faults, self._runs = Bucket(Clock()), faults, runs
        self.machines = {
            name: Machine(
                name, self.bucket, disk / name, runs.__getitem__, partial(self._moment, name)
            )
            for name in ("one", "two")
        }
        self.moments = 0
        self.wants_stopped: set[str] = set()
        self._is_struck = False
        self.person = Queue(MemoryStore(self.bucket), print)
        for at, name in enumerate(runs):
            # A fault may take the machine, never the job.
            self.person.add(Job(name, name, Spec("true", preemptions=1000), float(at)))

    def play(self) -> None:
        """Let everybody act until all jobs have ended."""
        while not all(states[-1] in ENDED for states in self.bucket.states.values()):
            assert self.bucket.clock.seconds < _MOST_SECONDS, "it never ends"
            self.act(2.0)

    def act(self, seconds: float, but: str = "") -> None:
        """Let time pass, and everybody act who is not `but`."""
        self.bucket.clock.seconds += seconds
        for name, machine in self.machines.items():
            if name != but:
                machine.step()
                running = [job for one in self.machines.values() for job in one.running()]
                assert len(running) <= 1, f"two programs have the TPU: {running}"

    def check(self) -> None:
        """Assert that every job has ended once, with its own result and its whole log."""
        started = Counter(one for machine in self.machines.values() for one in machine.started)
        assert set(started.values()) <= {1}, f"a try started twice: {started}"
        for name, states in self.bucket.states.items():
            assert [state in ENDED for state in states] == [False] * (len(states) - 1) + [True]
            job = parse(self.bucket.things[paths.record(name)].data, name)
            assert [one.number for one in job.tries] == list(range(1, len(job.tries) + 1))
            if job.state == STOPPED:
                assert name in self.wants_stopped
                continue
            assert job.code == self._runs[name][1]
            assert job.tries[-1].why == "exited"
            assert self._log(job) == f"{len(job.tries)}\n" * 3

    def _log(self, job: Job) -> str:
        pieces = MemoryStore(self.bucket).items(paths.logs(job.name, len(job.tries)))
        return b"".join(self.bucket.things[item.path].data for item in pieces).decode()

    def _moment(self, actor: str) -> None:
        if self._is_struck:
            return
        self.moments += 1
        if (fault := self._faults.get(self.moments)) is not None:
            self._is_struck = True
            try:
                fault(self, actor)
            finally:
                self._is_struck = False


Fault = Callable[[Scene, str], None]
"""What happens to an actor: it is called at the moment, and what it raises ends the call."""


def kill(scene: Scene, actor: str) -> None:
    """End the actor's runner; its programs go on, and systemd starts it again."""
    raise Killed


def reboot(scene: Scene, actor: str) -> None:
    """Start the actor's machine again: no program survives."""
    scene.machines[actor].reboot()
    raise Killed


def lose(scene: Scene, actor: str) -> None:
    """Break the connection: the call was carried out if it has changed something already."""
    raise GoogleError(0, "the answer is lost")


def pause(scene: Scene, actor: str) -> None:
    """Let the actor stand still for a while, and all others act."""
    _stand_still(scene, actor, 10)


def stall(scene: Scene, actor: str) -> None:
    """Let it stand still until its lease is another's, as in maintenance of its host."""
    _stand_still(scene, actor, 70)


def replace(scene: Scene, actor: str) -> None:
    """Take the actor's machine for longer than its lease; it comes back without its processes."""
    stall(scene, actor)
    reboot(scene, actor)


def _stand_still(scene: Scene, actor: str, seconds: int) -> None:
    for _ in range(seconds):
        scene.act(1.0, but=actor)


def stop(scene: Scene, actor: str) -> None:
    """Have a person stop what runs, just then."""

    def stopping(job: Job) -> Job | None:
        return job.stopping(scene.bucket.clock.seconds, "somebody") if not job.is_over else None

    for name, job in scene.person.summaries().items():
        if job["state"] == RUNNING:
            scene.wants_stopped.add(name)
            scene.person.change(name, stopping)


FAULTS: dict[str, Fault] = {
    fault.__name__: fault for fault in (kill, reboot, lose, pause, stall, replace, stop)
}
