"""The agent: what it costs its machine, and what becomes of its trainer when it is killed.

The cost is that of a real process on a machine of the local cloud, which looks after a TPU and a
trainer that trains. The kills are those of tests/agents.py.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import psutil

from bench.measure import Result
from bench.recovery import training
from tests.agents import kill_agents

_KILLS = 100
_MEASURED_SECONDS = 60.0


def measure_agent() -> list[Result]:
    """Memory and share of a core of the agent, and second trainers in a hundred kills."""
    with tempfile.TemporaryDirectory() as name:
        killed = kill_agents(Path(name), _KILLS, seed=0)
    lost = killed.begun - killed.ended + (not killed.finished)
    return [
        *_cost(),
        Result(f"agent: second trainers in {_KILLS} kills", killed.twice, "trainers", 0),
        Result(f"agent: trainers lost in {_KILLS} kills", lost, "trainers", 0),
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
