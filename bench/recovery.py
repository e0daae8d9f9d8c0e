"""From the kill of a TPU's worker to the next finished step, with real processes.

The local cloud preempts the TPU of a stack whose agent recreates it. The cloud's own time, from
the agent's deletion until the TPU is gone and from its creation until it is READY, which here is
the start of a worker process, is told, and left out of the sum: on Google it is minutes.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any
from urllib.parse import quote

import psutil
import requests

from bench.measure import LOOK_SECONDS, Result, wait_for, write_mnist
from tests.agents import kill_agents
from tests.killer import Killer, Life
from tests.sandbox import make_project, make_trainer, running, session, write_stack
from tpu_core.ledger import Entry, parse_entry
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.local import LocalCloudCommand
from tpustack.project import build_wheel

_KILLS = 3
_LOOPS = 5
_GOAL, _NOTICED = 12.0, 3.0
_ZONE = "projects/tpu-stack-local/zones/us-central1-b"
_TPU = "projects/tpu-stack-local/locations/us-central1-b/nodes/tpu-stack-local-tpu"
_GONE = "gone"
_NOTICES = "the agent notices and deletes"
_TRAINING = {
    "tensorflowVersion": "2.19.1",
    "args": ["--epochs=10000", "--steps_per_loop=20", "--checkpoint_interval=20"],
}


def measure_kill_to_step() -> list[Result]:
    """The median of some kills, and its parts."""
    kills = []
    with tempfile.TemporaryDirectory() as name, training(Path(name)) as running:
        for _ in range(_KILLS):
            running.wait_for_steps()
            kills.append(_kill(running))
    kill = sorted(kills, key=sum_of)[len(kills) // 2]
    goals = {_NOTICES: _NOTICED}
    parts = [Result(f"kill to step: {part}", s, "s", goals.get(part)) for part, s in kill.items()]
    whole = median(sum_of(kill) for kill in kills)
    return [Result("kill to step, without the cloud's own time", whole, "s", _GOAL), *parts]


def sum_of(parts: Mapping[str, float]) -> float:
    """Add up the parts that are not the cloud's."""
    return sum(seconds for part, seconds in parts.items() if not part.startswith("(cloud)"))


@dataclass
class _Running:
    """A stack that trains."""

    cloud: LocalCloudCommand
    google: requests.Session
    job: str

    def state(self) -> str:
        """The TPU's state."""
        answer = self.google.get(f"https://tpu.googleapis.com/v2/{_TPU}", timeout=30)
        return str(answer.json()["state"]) if answer.ok else _GONE

    def entries(self) -> list[Entry]:
        """All starts of the trainer until now, in their order."""
        bucket, _, folder = self.job.removeprefix("gs://").partition("/")
        objects = f"https://storage.googleapis.com/storage/v1/b/{bucket}/o"
        query = {"prefix": f"{folder}/ledger/2"}
        found = self.google.get(objects, params=query, timeout=30).json().get("items", [])
        texts = [
            self.google.get(f"{objects}/{quote(item['name'], safe='')}?alt=media", timeout=30).text
            for item in found
        ]
        return sorted(filter(None, map(parse_entry, texts)), key=lambda entry: entry.begin)

    def lines(self) -> int:
        """How many loops the trainer has finished, by the machine's serial port."""
        vm = f"https://compute.googleapis.com/compute/v1/{_ZONE}/instances/tpu-stack-local-vm"
        answer = self.google.get(f"{vm}/serialPort", timeout=30)
        return len(re.findall(r"progress step=", answer.json().get("contents", "")))

    def wait_for_steps(self) -> None:
        """Wait for some finished loops, each of which saves a checkpoint."""
        before = self.lines()
        wait_for(lambda: self.lines() >= before + _LOOPS, "a step")


@contextmanager
def training(folder: Path) -> Iterator[_Running]:
    project = make_project(folder)
    settings = {**_TRAINING, "data": str(write_mnist(folder)), "wheel": str(build_wheel())}
    write_stack(project, Path(), training=settings, recovery={"enabled": True})
    with running(LocalCloudCommand(folder / "cloud")) as cloud:
        environment = toolchain.environment(toolchain.find(), folder / "state")
        stack = Backend(environment | cloud.environment(), project).select("local")
        stack.up(lambda line: None)
        yield _Running(cloud, session(cloud), str(stack.outputs()["job_url"]))


def _kill(running: _Running) -> dict[str, float]:
    """Kill the worker and return the seconds of each part until a step is finished."""
    starts = len(running.entries())
    states: dict[str, float] = {}
    done = Event()
    watcher = Thread(target=_watch, args=(running.state, states, done), daemon=True)
    watcher.start()
    running.cloud.run("faults", "preempt", _TPU)
    wait_for(lambda: "READY" in states, "the next TPU")
    wait_for(lambda: len(running.entries()) > starts, "the next start")
    before = running.lines()
    stepped = wait_for(lambda: running.lines() > before, "the next step")
    done.set()
    watcher.join()
    return parts_of(states, running.entries()[-1], stepped)


def parts_of(states: Mapping[str, float], entry: Entry, stepped: float) -> dict[str, float]:
    """Split the time; `states` says when each of the TPU's states was first seen."""
    killed, ready = states["PREEMPTED"], states["READY"]
    deleted = min(states.get("DELETING", ready), states.get(_GONE, ready))
    gone = states.get(_GONE, deleted)
    created = states.get("CREATING", ready)
    connected = entry.begin + entry.seconds["load"] + entry.seconds["wait"]
    started = max(entry.begin, ready)
    prepared = connected + entry.seconds["connect"] + entry.seconds["restore"]
    built = max(prepared, entry.end)
    return {
        _NOTICES: deleted - killed,
        "(cloud) deletion": gone - deleted,
        "the agent asks for another": created - gone,
        "(cloud) creation, with the worker's start": ready - created,
        "a trainer starts": started - ready,
        "it loads TensorFlow and finds the TPU": connected - started,
        "connect": entry.seconds["connect"],
        "restore": entry.seconds["restore"],
        "build the model and the step": built - prepared,
        "the first loop, which compiles": stepped - built,
    }


def _watch(state: Callable[[], str], seen: dict[str, float], done: Event) -> None:
    """Note when the TPU comes into each state after its preemption."""
    while not done.wait(LOOK_SECONDS):
        now = state()
        if now == "PREEMPTED" or seen:
            seen.setdefault(now, time.time())


# --- `pulumi up` and `destroy` killed at random moments: does the stack survive?

_LIVES, _ENGINE_KILLS = 20, 5
_MACHINE = {
    "architecture": "compute",
    "zone": "us-east5-a",
    "vm": {},
    "tpu": {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"},
}
_FORMS: Mapping[str, Any] = {"kill points": {}, "kill points on Compute Engine": _MACHINE}


def measure_killpoints() -> list[Result]:
    """Stacks with a TPU VM and with a machine, each killed five times on its way up and down."""
    return [each for form in _FORMS.items() for each in _lives(*form)]


def _lives(name: str, settings: Mapping[str, Any]) -> Iterator[Result]:
    told: list[tuple[Life, int]] = []
    for seed in range(_LIVES // 2 if settings else _LIVES):
        with tempfile.TemporaryDirectory() as folder:
            told.append(_live(Path(folder), seed, settings))
    yield Result(name, sum(len(life.points) for life, _ in told), "kills")
    yield Result(f"{name}: changes after", sum(life.changes_after for life, _ in told), "", 0)
    yield Result(f"{name}: resources left", sum(left for _, left in told), "", 0)
    yield Result(f"{name}: processes left", sum(life.processes_left for life, _ in told), "", 0)


def _live(folder: Path, seed: int, settings: Mapping[str, Any]) -> tuple[Life, int]:
    with running(LocalCloudCommand(folder / "cloud")) as cloud:
        environment = toolchain.environment(toolchain.find(), folder / "state")
        environment |= cloud.environment()
        project, wheel = make_project(folder), str(make_trainer(folder))
        training = {"wheel": wheel, "tensorflowVersion": "2.19.1"}
        training["runOn"] = "tpu" if settings else "vm"
        write_stack(project, Path(), training=training, **settings)
        before = cloud.status()["resources"]
        stack = Backend(environment, project).select("local")
        life = Killer(project, environment).live(stack, seed, _ENGINE_KILLS)
        after = cloud.status()["resources"]
    left = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    return life, sum(abs(count) for count in left.values())


# --- The agent: what it costs its machine, and what becomes of its trainer when it is killed.
#
# The cost is that of a real process, which looks after a TPU and a trainer that trains.

_AGENT_KILLS, _MEASURED_SECONDS = 100, 60.0


def measure_agent() -> list[Result]:
    """Memory and share of a core of the agent, and second trainers in a hundred kills."""
    with tempfile.TemporaryDirectory() as name:
        killed = kill_agents(Path(name), _AGENT_KILLS, seed=0)
    lost = killed.begun - killed.ended + (not killed.finished)
    return [
        *_cost(),
        Result(f"agent: second trainers in {_AGENT_KILLS} kills", killed.twice, "trainers", 0),
        Result(f"agent: trainers lost in {_AGENT_KILLS} kills", lost, "trainers", 0),
    ]


def _cost() -> list[Result]:
    with tempfile.TemporaryDirectory() as name, training(Path(name)) as running:
        running.wait_for_steps()
        agent = next(process for process in psutil.process_iter() if _is_agent(process, name))
        before, begun = agent.cpu_times(), time.monotonic()
        time.sleep(_MEASURED_SECONDS)
        after, took = agent.cpu_times(), time.monotonic() - begun
        share = (after.user + after.system - before.user - before.system) / took
        memory = agent.memory_info().rss / 2**20
    return [
        Result("agent: share of a core", 100 * share, "%", 0.5),
        Result("agent: memory", memory, "MiB", 40),
    ]


def _is_agent(process: psutil.Process, folder: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return len(words) == 2 and words[1].endswith("/agent.py") and words[1].startswith(folder)
