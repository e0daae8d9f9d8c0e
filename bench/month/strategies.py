"""Who brings a lost TPU back: this project's agent, and others as their sources say they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from bench.month.cloud import BODY, Cloud
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Client
from tpu_core.paths import DECLARATION
from tpu_core.tpu import Place

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


STRATEGIES = (
    Strategy("agent", 10.0, None, _agent),
    Strategy("agent, checkpoints each 15 min", 10.0, 900.0, _agent),
    # sky/jobs/utils.py: JOB_STATUS_CHECK_GAP_SECONDS; recovery_strategy.py terminates first.
    Strategy("SkyPilot's loop", 15.0, 900.0, _delete_first),
    # `pu babysit`: its interval by default.
    Strategy("tpunicorn's loop", 30.0, 900.0, _delete_first),
)
