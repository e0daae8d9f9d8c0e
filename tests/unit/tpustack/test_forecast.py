"""`tpustack forecast`: dollars and the date of a training's end."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from tests.unit.tpustack.conftest import Run
from tpu_infra.catalog import Catalog
from tpu_infra.settings.machines import Capacity
from tpustack.commands.forecast import (
    CREATE_SECONDS,
    DELETE_SECONDS,
    START_SECONDS,
    Training,
    finish,
    preemptions,
    runs_of,
    table,
    ways_of,
)

FEW = settings(max_examples=30, deadline=None)
STEPS = st.floats(1.0, 3e6)
HOURS = st.floats(0.5, 200.0)
GIVEN = ("forecast", "--region", "us-central1")


def ways(hours: float, step_seconds: float, tpu: str = "v3-8") -> list[Any]:
    training = Training(tpu, 10_000, step_seconds, "assumption")
    return [*ways_of(training, "us-central1", hours, Catalog())]


@FEW
@given(STEPS, HOURS, st.floats(1.0, 10.0), st.integers(0, 99))
def test_more_preemptions_never_make_a_run_shorter(
    steps: float, hours: float, times: float, seed: int
) -> None:
    rare = finish(steps, preemptions(seed, hours * times))
    often = finish(steps, preemptions(seed, hours))
    assert often.lost >= rare.lost
    assert often.ready >= rare.ready
    assert often.away >= rare.away


@FEW
@given(HOURS, st.floats(1.0, 10.0), st.floats(0.01, 20.0))
def test_more_preemptions_never_make_a_training_cheaper_or_earlier(
    hours: float, times: float, step_seconds: float
) -> None:
    rare, often = ways(hours * times, step_seconds)[1], ways(hours, step_seconds)[1]
    assert all(more >= less for more, less in zip(often.dollars, rare.dollars, strict=True))
    assert all(more >= less for more, less in zip(often.seconds, rare.seconds, strict=True))


@FEW
@given(HOURS, st.floats(0.01, 20.0))
def test_on_demand_has_no_spread_and_spot_never_ends_before_it(
    hours: float, step_seconds: float
) -> None:
    on_demand, spot = ways(hours, step_seconds)
    assert on_demand.capacity is Capacity.ON_DEMAND
    assert on_demand.dollars[0] == on_demand.dollars[1]
    assert on_demand.seconds[0] == on_demand.seconds[1] <= spot.seconds[0]
    assert on_demand.lost == (0, 0)


@FEW
@given(STEPS, STEPS, HOURS)
def test_more_steps_never_take_less_time(one: float, more: float, hours: float) -> None:
    short, long = (finish(steps, preemptions(7, hours)) for steps in (one, one + more))
    assert long.ready > short.ready
    assert long.away >= short.away


def test_a_loss_costs_the_start_and_the_steps_since_the_checkpoint_with_a_tpu_and_its_absence() -> (
    None
):
    whole = finish(1000.0, ())
    lost = finish(1000.0, [(500.0, 100.0)])
    assert whole.away == CREATE_SECONDS
    assert lost.ready - whole.ready == pytest.approx(START_SECONDS + 100.0)
    assert lost.away - whole.away == pytest.approx(DELETE_SECONDS + CREATE_SECONDS)
    assert lost.lost == 1


def test_a_tpu_that_lives_to_the_end_is_not_lost() -> None:
    ready = finish(1000.0, ()).ready
    assert finish(1000.0, [(ready, 100.0)]).lost == 0


def test_a_seed_gives_the_same_runs_each_time() -> None:
    assert runs_of(Capacity.SPOT, 1e6, 16.0) == runs_of(Capacity.SPOT, 1e6, 16.0)
    assert len(set(runs_of(Capacity.SPOT, 1e6, 16.0))) > 100


def test_the_mean_number_of_preemptions_is_the_time_divided_by_the_life() -> None:
    runs = runs_of(Capacity.SPOT, 30 * 86400.0, 16.0)
    assert sum(run.lost for run in runs) / len(runs) == pytest.approx(45, rel=0.05)


def test_flex_start_ends_after_seven_days_and_is_offered_in_its_regions_alone() -> None:
    week = 7 * 86400.0
    assert [runs_of(Capacity.FLEX_START, t, 16.0)[0].lost for t in (week / 2, 2.5 * week)] == [0, 2]
    training = Training("ct6e-standard-4t", 1000, 1.0, "assumption")
    here, there = (
        [way.capacity.value for way in ways_of(training, region, 16.0, Catalog())]
        for region in ("us-east5", "us-central1")
    )
    assert here == ["on-demand", "spot", "flex-start"]
    assert there == ["on-demand", "spot"]


def test_an_unknown_price_is_unknown_and_never_zero() -> None:
    training = Training("v6e-4", 1000, 1.0, "assumption")
    [way] = list(ways_of(training, "us-east5", 16.0, Catalog()))[2:]
    assert (way.capacity, way.hour, way.dollars) == (Capacity.FLEX_START, None, None)


def test_a_forecast_is_a_table_with_the_kind_of_each_figure(run: Run) -> None:
    done = run(*GIVEN, "--accelerator-type=v3-8", "--steps=1000000", "--step-seconds=0.142")
    assert done.code == 0, done.err
    rows, _, said = done.out.partition("\n\n")
    row = rows.splitlines()[1].split()
    end = date.fromisoformat(row.pop(4))
    assert row == ["v3-8", "on-demand", "39.7", "$316.29", "0"]
    assert 1 <= (end - datetime.now(timezone.utc).date()).days <= 2
    assert said.startswith("Step on v3-8: 142 ms (assumption: your figure); 1,000,000 steps.\n")
    assert "(assumption; Google publishes no rate)" in said
    assert "Prices of 2026-11-21: https://" in said


def test_a_terminal_of_80_columns_gets_no_longer_row() -> None:
    training = Training("ct6e-standard-4t", 10_000_000, 3.0, "assumption")
    found = [*ways_of(training, "us-east5", 16.0, Catalog())]
    wide, narrow = (table(found, datetime(2026, 12, 1), columns) for columns in (None, 80))
    assert "lost" in wide.splitlines()[0]
    assert max(map(len, narrow.splitlines())) <= 80
    assert "lost" not in narrow.splitlines()[0]


def test_json_has_ranges_and_sources(run: Run) -> None:
    done = run(*GIVEN, "--accelerator-type=v3-8", "--steps=9", "--step-seconds=100", "--json")
    way = json.loads(done.out)["ways"][0]
    assert way["training"]["tpu"] == "v3-8"
    assert way["training"]["kind"] == "assumption"
    assert way["hour"]["amount"] == "8.00"
    assert way["hour"]["source"]["url"].startswith("https://")
    dollars = pytest.approx(8 * (START_SECONDS + 900 * (1 + 0.5 / 240)) / 3600, abs=1e-6)
    assert [float(each) for each in way["dollars"]] == [dollars, dollars]
    assert way["seconds"][0] == pytest.approx(
        CREATE_SECONDS + START_SECONDS + 900 * (1 + 0.5 / 240)
    )


def answers(*found: tuple[str, float | str | None]) -> str:
    return json.dumps(
        {
            "answers": [
                {
                    "tpu": {"name": name},
                    "global_batch_size": 1024,
                    "bound": bound and {"seconds": bound},
                }
                for name, bound in found
            ]
        }
    )


def test_a_compiled_answer_gives_types_bounds_and_the_batch(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(answers(("v3-8", 0.0772), ("v2-8", 0.131)))
    done = run(*GIVEN, f"--answers={file}", "--examples=128116700", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [way["training"]["tpu"] for way in found["ways"]] == ["v3-8", "v3-8", "v2-8", "v2-8"]
    assert {way["training"]["steps"] for way in found["ways"]} == {125114}
    assert found["notes"][0].startswith("Step on v3-8: 77.2 ms (bound: the compiler's lower bound")


def test_a_slice_of_machines_costs_as_much_as_all_of_them(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(answers(("ct6e-standard-4t", 0.1), ("ct6e-standard-4t:4x4", 0.1)))
    done = run(*GIVEN, f"--answers={file}", "--steps=100000", "--json")
    assert done.code == 0, done.err
    one, *_, four, _ = json.loads(done.out)["ways"]
    assert float(four["dollars"][0]) == pytest.approx(4 * float(one["dollars"][0]), rel=1e-5)


def test_a_tpu7x_has_a_date_and_no_known_price(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(answers(("tpu7x-standard-4t", 0.1)))
    done = run(*GIVEN, f"--answers={file}", "--steps=100000")
    assert done.code == 0, done.err
    assert "tpu7x-standard-4t  on-demand" in done.out
    assert "unknown" in done.out


def test_a_ledger_gives_the_measured_time_of_a_step(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tpu_training.goodput import account

    seconds = {name: 0.0 for name, _ in account.STATES} | {"step": 90.0, "input": 10.0, "lost": 7.0}
    made = account.Account(seconds, {}, {}, {}, 1, 500, 35)
    monkeypatch.setattr(account, "account", lambda ledger: made)
    done = run(*GIVEN, f"--ledger={tmp_path}", "--accelerator-type=v3-8", "--steps=1000", "--json")
    assert done.code == 0, done.err
    way = json.loads(done.out)["ways"][0]["training"]
    assert (way["step_seconds"], way["kind"]) == (0.2, "measured")


def test_a_stack_is_priced_with_all_its_parts(run: Run, project: Path) -> None:
    done = run("forecast", "--stack=prod", "--steps=100000", "--step-seconds=1", "--json")
    assert done.code == 0, done.err
    way = json.loads(done.out)["ways"][0]
    alone = float(way["hour"]["amount"]) * way["seconds"][0] / 3600
    assert float(way["dollars"][0]) > alone


def test_a_stack_of_several_slices_is_refused(run: Run, project: Path) -> None:
    path = project / "stacks" / "Pulumi.prod.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document["config"]["tpu-stack:tpu"]["slices"] = 2
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    done = run("forecast", "--stack=prod", "--steps=10", "--step-seconds=1")
    assert done.code == 2
    assert "tpu.slices: 2 " in done.err


TYPE, STEPS_GIVEN = "--accelerator-type=v3-8", "--steps=10"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([TYPE, "--step-seconds=1"], "either --steps or --examples"),
        ([TYPE, STEPS_GIVEN, "--examples=3", "--step-seconds=1"], "either --steps or --examples"),
        ([TYPE, STEPS_GIVEN], "the time of a step is unknown"),
        ([TYPE, "--examples=3", "--step-seconds=1"], "knows the batch. Use --steps"),
        ([TYPE, STEPS_GIVEN, "--step-seconds=1", "--ledger=x"], "exclude each other"),
        ([STEPS_GIVEN, "--step-seconds=1"], "either --accelerator-type or --answers"),
        (["--stack=prod", STEPS_GIVEN, "--step-seconds=1"], "can't be combined"),
        ([TYPE, STEPS_GIVEN, "--step-seconds=nan"], "v3-8 needs nan hours"),
        (
            [TYPE, STEPS_GIVEN, "--step-seconds=1", "--preempted-after=nan"],
            "times --preempted-after=nan",
        ),
        ([TYPE, f"--steps={10**400}", "--step-seconds=1"], "is not in the range"),
        ([TYPE, STEPS_GIVEN, "--ledger=none"], "none is not a folder"),
        (
            ["--accelerator-type=v33-8", STEPS_GIVEN, "--step-seconds=1"],
            '"v33-8" is not an accelerator of the catalog',
        ),
        (["--accelerator-type=v4-8", STEPS_GIVEN, "--step-seconds=1"], "has no v4-8"),
        (["--accelerator-type=V100", STEPS_GIVEN, "--step-seconds=1"], "V100 is a GPU"),
        (
            [TYPE, "--steps=100000000", "--step-seconds=1", "--preempted-after=1"],
            "v3-8 needs 27,778 hours: expected at most 10,000 times --preempted-after=1",
        ),
    ],
)
def test_wrong_input_has_one_message(
    arguments: list[str], message: str, run: Run, project: Path
) -> None:
    done = run(*GIVEN, *arguments)
    assert done.code == 2
    assert message in done.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nothing", "is not the output of `tpu-training compile --json`"),
        ('{"answers": [{}]}', "is not the output of `tpu-training compile --json`"),
        ('{"answers": []}', "is not the output of `tpu-training compile --json`"),
        ("[" * 100_000, "is not the output of `tpu-training compile --json`"),
        (answers(("v3-8", float("nan"))), "is not the output of `tpu-training compile --json`"),
        (answers(("v3-8", -1.0)), "is not the output of `tpu-training compile --json`"),
        (answers(("v3-8", "fast")), "is not the output of `tpu-training compile --json`"),
        (answers(("v3-8", None)), "v3-8 has no bound"),
        (answers(("v33-8", 1.0)), '"v33-8" is not an accelerator of the catalog'),
    ],
)
def test_a_wrong_answer_has_one_message(
    content: str, message: str, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "answers.json"
    file.write_text(content)
    done = run(*GIVEN, f"--answers={file}", STEPS_GIVEN)
    assert done.code == 2
    assert message in done.err
