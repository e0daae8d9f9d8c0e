"""A thousand faults by chance, two agents: a TPU comes back, and ends when its time is over."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Latency
from localcloud.testing import Client
from tests.examples import examples
from tpu_core.google import Call, Json

from .conftest import TPU, Killed, state
from .test_lives import HOUR, Limited
from .test_recovery import BODY, objects, preempt, write

CHANCE = 0.1
BUDGETS = {"preemption": 99, "failure": 99}


@pytest.fixture
def latency() -> Latency:
    """A TPU takes 90 s to come and 45 s to go."""
    return "real"


class Faults:
    """What strikes an agent's calls: a kill before or after, a lost answer, a service away."""

    def __init__(self, chance: Random) -> None:
        self.chance, self.struck, self.strike = chance, 0, True

    def around(self, call: Call) -> Call:
        def faulty(method: str, url: str, body: str | None) -> tuple[int, Json]:
            if not self.strike or self.chance.random() >= CHANCE:
                return call(method, url, body)
            self.struck += 1
            fault = self.chance.choice(("killed", "killed late", "lost", "away"))
            if fault == "away":
                return 503, {}
            if fault == "killed":
                raise Killed
            call(method, url, body)
            raise Killed if fault == "killed late" else OSError("the answer is lost")

        return faulty


class Soaked(Limited):
    """An agent that acts once in a while, whatever strikes."""

    def act(self) -> None:
        try:
            with contextlib.suppress(OSError):
                self.recovery.look(["t"], BUDGETS, None, 0.0, 12.0)
            with contextlib.suppress(OSError):
                self.enforcer.look(self.limits)
        except Killed:
            self.start()


@pytest.mark.slow
def test_a_thousand_faults_leave_nothing_running_and_nothing_unmade(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    write(google, "agent/declaration.json", {"tpus": {"t": BODY}})
    chance = Random(29)
    faults = Faults(chance)
    agents = [Soaked(local_cloud, clock) for _ in range(2)]
    for agent in agents:
        agent.call = faults.around(agent.call)
    while faults.struck < examples(1000):
        google.post(f"{TPU}/nodes", BODY, nodeId="t")
        clock.advance(100.0)
        born, faults.strike = clock.now(), True
        ready = looks = 0
        while clock.now() < born + 12.5 * HOUR:
            if state(google) == "READY" and chance.random() < 0.02:
                preempt(agents[0])
            for agent in agents:
                agent.act()
                clock.advance(chance.uniform(1.0, 60.0))
            if clock.now() < born + 12 * HOUR:
                ready, looks = ready + (state(google) == "READY"), looks + 1
        assert ready > looks * 2 / 3
        faults.strike = False
        for agent in agents:
            agent.act()
        assert state(google) == "gone"
    assert not objects(google, "rejected/")
