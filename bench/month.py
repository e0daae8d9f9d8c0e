"""Thirty days of a job on spot TPUs, in virtual time: the agent's real code and others' loops."""

import json
import math
import random
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import mean

from bench.measure import Result
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Answer, Body, Client, Json
from tpu_core.paths import DECLARATION
from tpu_core.tpu import Place
from tpu_training.checkpoints.reader import JobHistory
from tpu_training.loop.train import CheckpointSchedule
from tpustack.commands import forecast
from tpustack.commands.recovery import LOOK_SECONDS

LIFE_SECONDS = forecast.LIFE_HOURS * 3600
# A life is exponential; a creation is within half of its mean.
_SPREAD = 0.5


@dataclass(frozen=True)
class Tpu:
    """One TPU: seconds from its creation to READY, and from then to its preemption."""

    takes: float
    lives: float


def drawn(seed: int, lives: float = LIFE_SECONDS) -> Iterator[Tpu]:
    """Draw TPUs for ever that live for so many seconds on average."""
    chance = random.Random(seed)
    while True:
        takes = forecast.CREATE_SECONDS * chance.uniform(1 - _SPREAD, 1 + _SPREAD)
        yield Tpu(takes, chance.expovariate(1 / lives))


# --- A TPU and a bucket that keep virtual time, behind the calls that the agent makes.

BODY = {"acceleratorType": "v2-8", "labels": {"tpu-stack-mark": "month"}}


@dataclass
class Life:
    """What has become of one TPU; times that are not reached yet are infinite."""

    asked: float
    ready: float
    preempted: float


@dataclass
class Cloud:
    """The cloud at the moment `now`."""

    trace: Iterator[Tpu]
    now: float = 0.0
    lives: list[Life] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    deleted: float = float("inf")

    def state(self) -> str | None:
        """Return the TPU's state; None if there is none."""
        if not self.lives or self.now >= self.deleted + forecast.DELETE_SECONDS:
            return None
        if self.now >= self.deleted:
            return "DELETING"
        life = self.lives[-1]
        if self.now >= life.preempted:
            return "PREEMPTED"
        return "READY" if self.now >= life.ready else "CREATING"

    def create(self) -> None:
        """Start to create the next TPU of the trace."""
        tpu = next(self.trace)
        ready = self.now + tpu.takes
        self.lives.append(Life(self.now, ready, ready + tpu.lives))
        self.deleted = float("inf")

    def delete(self) -> None:
        """Start to delete the TPU."""
        self.deleted = min(self.deleted, self.now)

    def send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        """Answer a request of the agent's."""
        sent = b"" if body is None else bytes(body)  # type: ignore[arg-type]
        if "/storage/v1/" in url:
            return self._object(method, url, sent)
        status, answer = self.call(method, url, sent.decode())
        return status, {}, json.dumps(answer).encode()

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        """Answer a call of the agent's."""
        state = self.state()
        if "/operations/" in url:
            return 200, {"done": state != "CREATING"}
        if method == "POST":
            if state is not None:
                return 409, {"error": {"message": "it exists already"}}
            self.create()
            return 200, {"name": "projects/p/locations/z/operations/o"}
        if state is None:
            return 404, {"error": {"message": "there is none"}}
        if method == "DELETE":
            self.delete()
            return 200, {}
        asked = time.gmtime(self.lives[-1].asked)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", asked)
        return 200, {"state": state, "createTime": created, **BODY}

    def _object(self, method: str, url: str, body: bytes) -> Answer:
        head = {"x-goog-generation": "1"}
        if method == "POST":
            _, about, content, _ = body.split(body.partition(b"\r\n")[0])
            name = json.loads(about.partition(b"\r\n\r\n")[2])["name"]
            self.objects[name] = content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            return 200, head, b'{"generation": "1"}'
        found = self.objects.get(
            urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/o/")[2])
        )
        return (404, {}, b"{}") if found is None else (200, head, found)


# --- Who brings a lost TPU back: this project's agent, and others as their sources say they do.

_BUDGETS = {"preemption": 1000, "failure": 1000}


@dataclass(frozen=True)
class Strategy:
    """A loop that looks every `poll` seconds.

    Attributes:
        checkpoints: seconds between two checkpoints; None: Young's formula.
        start: returns what each look does.
    """

    name: str
    poll: float
    checkpoints: float | None
    start: Callable[[Cloud], Callable[[], None]]


def _agent(cloud: Cloud) -> Callable[[], None]:
    """Return a look of the agent's real code."""
    cloud.objects[DECLARATION] = json.dumps({"tpus": {"t": BODY}}).encode()
    world = World(lambda: cloud.now, lambda text: None, lambda host, port: None, lambda: 0.5)
    recovery = Recovery(Place("p", "z", "b"), Client(cloud.send), world)
    return lambda: recovery.look(["t"], _BUDGETS)


def _delete_first(cloud: Cloud) -> Callable[[], None]:
    """Return a look that deletes what is left, and creates once it is gone."""

    def look() -> None:
        state = cloud.state()
        if state == "PREEMPTED":
            cloud.delete()
        elif state is None:
            cloud.create()

    return look


def _renew(cloud: Cloud) -> Callable[[], None]:
    """Return a look that does both in one update, as `Stack.renew` does."""

    def look() -> None:
        if cloud.state() in ("PREEMPTED", None):
            cloud.now += forecast.DELETE_SECONDS
            cloud.create()

    return look


STRATEGIES = (
    Strategy("agent", 10.0, None, _agent),
    Strategy("agent, checkpoints each 15 min", 10.0, 900.0, _agent),
    # Of a spot slice of machines, which Google takes as a whole, as it does a TPU of the TPU API.
    Strategy("tpustack recover --loop", LOOK_SECONDS, None, _renew),
    # sky/jobs/utils.py: JOB_STATUS_CHECK_GAP_SECONDS; recovery_strategy.py terminates first.
    Strategy("SkyPilot's loop", 15.0, 900.0, _delete_first),
    # `pu babysit`: its interval by default.
    Strategy("tpunicorn's loop", 30.0, 900.0, _delete_first),
)


# --- Where thirty days of wall time go.

MONTH_SECONDS = 30 * 86400.0


@dataclass
class Month:
    """Seconds by what they went into; they add up to the month."""

    step: float = 0.0
    checkpoint: float = 0.0
    lost_steps: float = 0.0
    starting: float = 0.0
    recovering: float = 0.0
    provisioning: float = 0.0
    preemptions: int = 0

    @property
    def availability(self) -> float:
        """The part of the month in which the TPU was READY."""
        return 1 - self._away / MONTH_SECONDS

    @property
    def goodput(self) -> float:
        """The part of the month that went into steps that count."""
        return self.step / MONTH_SECONDS

    @property
    def whole(self) -> float:
        """All of it."""
        return self.step + self.checkpoint + self.lost_steps + self.starting + self._away

    @property
    def _away(self) -> float:
        return self.recovering + self.provisioning


def simulate(strategy: Strategy, trace: Iterator[Tpu]) -> Month:
    """Run a month from the moment at which the first TPU is READY."""
    cloud = Cloud(trace)
    cloud.create()
    first = cloud.lives[0]
    cloud.lives[0] = Life(-first.ready, 0.0, first.preempted - first.ready)
    look = strategy.start(cloud)
    looks = 0
    while cloud.now < MONTH_SECONDS:
        look()
        # Nothing changes before the TPU's end: the looks until then see what this one saw.
        nothing = cloud.lives[-1].preempted - cloud.now if cloud.state() == "READY" else 0.0
        looks += max(1, math.ceil(min(nothing, MONTH_SECONDS) / strategy.poll))
        cloud.now = looks * strategy.poll
    return _account(cloud.lives, strategy)


def _account(lives: list[Life], strategy: Strategy) -> Month:
    month, history, since = Month(), JobHistory(), 0.0
    for life in lives:
        asked, ready = max(0.0, life.asked), min(life.ready, MONTH_SECONDS)
        month.recovering += asked - since
        month.provisioning += ready - asked
        since = min(life.preempted, MONTH_SECONDS)
        _train(month, ready, since, strategy.checkpoints, history)
        month.preemptions += life.preempted < MONTH_SECONDS
        history.starts += 1
    month.recovering += MONTH_SECONDS - since
    return month


def _train(
    month: Month, begin: float, end: float, interval: float | None, history: JobHistory
) -> None:
    """Train on a TPU that is READY from `begin` to `end`, when it goes without notice."""
    now = min(begin + forecast.START_SECONDS, end)
    month.starting += now - begin
    schedule = CheckpointSchedule(0, history, lambda: now)
    while now < end:
        pause = interval or schedule.seconds
        if now + pause + forecast.SAVE_SECONDS > end:
            # What the month's end cuts off is not lost.
            kind = "step" if end == MONTH_SECONDS else "lost_steps"
            setattr(month, kind, getattr(month, kind) + end - now)
            return
        now += pause
        month.step += pause
        schedule.begin()
        now += forecast.SAVE_SECONDS
        month.checkpoint += forecast.SAVE_SECONDS
        schedule.saved(forecast.SAVE_SECONDS)


_SEEDS = range(5)
# Goals in percent, of the agent only.
_GOALS = {"availability": 99.0, "goodput": 98.0}


def measure_month() -> list[Result]:
    """The mean of five months."""
    results = []
    for strategy in STRATEGIES:
        months = [simulate(strategy, drawn(seed)) for seed in _SEEDS]
        for figure, goal in _GOALS.items():
            value = 100 * mean(getattr(month, figure) for month in months)
            wanted = goal if strategy.name == "agent" else None
            name = f"month: {figure}, {strategy.name}"
            results.append(Result(name, value, "%", wanted, better="higher"))
    return results
