"""Agents are killed at random points; `make bench ONLY=agent` does it a hundred times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents import kill_agents


@pytest.mark.slow
def test_whenever_an_agent_is_killed_no_second_trainer_starts_and_none_is_lost(
    tmp_path: Path,
) -> None:
    told = kill_agents(tmp_path, kills=15, seed=1)
    assert told.twice == 0
    assert told.begun == told.ended > 1
    assert told.finished
