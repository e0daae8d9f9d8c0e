"""The simulated month: all seconds are accounted for, and the agent does not lose to others."""

from __future__ import annotations

import pytest

from bench.month import LIFE_SECONDS, MONTH_SECONDS, STRATEGIES, Tpu, drawn, simulate
from tpu_training.loop.train import TYPICAL_SECONDS_BETWEEN_FAILURES
from tpustack.commands.forecast import (
    DELETE_SECONDS,
    LIFE_HOURS,
    SAVE_SECONDS,
    START_SECONDS,
    finish,
    preemptions,
)

# The loops under test come with TensorFlow.
pytestmark = pytest.mark.training

AGENT, FIXED, LOOP, SKYPILOT, TPUNICORN = STRATEGIES


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_the_states_add_up_to_the_wall_time(strategy: object) -> None:
    month = simulate(strategy, drawn(1))  # type: ignore[arg-type]
    assert month.whole == pytest.approx(MONTH_SECONDS)
    assert month.preemptions > 30


def test_a_month_without_a_preemption_is_all_steps_but_the_start_and_the_saves() -> None:
    month = simulate(AGENT, iter([Tpu(100.0, 1e9)]))
    assert month.availability == 1.0
    assert month.starting == START_SECONDS
    assert month.lost_steps == 0.0
    assert month.step + month.checkpoint == pytest.approx(MONTH_SECONDS - START_SECONDS)
    assert month.checkpoint % SAVE_SECONDS == 0


def test_what_one_preemption_costs() -> None:
    """The agent looks every 10 s, the deletion takes 45 s, the creation 100 s."""
    month = simulate(AGENT, iter([Tpu(0.0, 86_403.0), Tpu(100.0, 1e9)]))
    assert month.preemptions == 1
    assert month.provisioning == 100.0
    # Seen after 7 s, deleted after 52 s, which the look after 57 s sees.
    assert month.recovering == 7 + 50
    assert month.recovering >= DELETE_SECONDS


@pytest.mark.parametrize("seed", range(5))
def test_on_the_same_trace_the_agent_does_at_least_as_well_as_others(seed: int) -> None:
    strategies = (AGENT, FIXED, SKYPILOT, TPUNICORN)
    agent, fixed, skypilot, tpunicorn = (simulate(s, drawn(seed)) for s in strategies)
    assert agent.goodput > fixed.goodput
    assert fixed.goodput > tpunicorn.goodput
    assert agent.goodput > skypilot.goodput


def test_a_spot_slice_that_a_loop_recreates_is_there_and_trains_for_98_5_percent() -> None:
    """If Google takes it once in 16 hours as a whole, as it does a TPU VM.

    What the engine itself takes for an update, some seconds, is left out.
    """
    months = [simulate(LOOP, drawn(seed)) for seed in range(5)]
    assert sum(month.availability for month in months) / 5 > 0.985
    assert sum(month.goodput for month in months) / 5 > 0.985


@pytest.mark.parametrize("seed", range(5))
def test_a_slice_in_capacity_that_google_manages_trains_for_99_percent(seed: int) -> None:
    """If each of its four machines fails once in 30 days, and Google is as fast as the loop.

    GPU machines are reported to fail less often (arXiv 2407.21783: once in 50,000 GPU hours), and
    no figures are known for TPUs.
    """
    month = simulate(LOOP, drawn(seed, MONTH_SECONDS / 4))
    assert month.preemptions > 0
    assert month.goodput > 0.99


def test_the_forecast_of_a_months_steps_takes_the_month_that_the_agents_real_code_took() -> None:
    months = [simulate(AGENT, drawn(seed)) for seed in range(12)]
    forecast = [finish(m.step, preemptions(s, LIFE_HOURS)) for s, m in enumerate(months)]
    mean = sum(run.ready + run.away for run in forecast) / len(forecast)
    assert mean == pytest.approx(MONTH_SECONDS, rel=0.005)


def test_the_trainer_assumes_the_same_rhythm() -> None:
    assert TYPICAL_SECONDS_BETWEEN_FAILURES == LIFE_SECONDS
