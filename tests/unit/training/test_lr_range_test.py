from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_training.__main__ import main
from tpu_training.job.job import Job
from tpu_training.job.lr_range_test.curve import Curve, Point, Verdict, exponential_rates, judge
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

RATES = exponential_rates(1e-6, 10.0, 141)


def textbook_loss(rate: float) -> float:
    """Flat at 2.3 up to 1e-4, down to 0.3 at 1e-1, and up again above."""
    x = math.log10(rate)
    if x < -4:
        return 2.3
    if x < -1:
        return 2.3 - 2.0 * (x + 4) / 3
    return 0.3 + 8.0 * (x + 1)


def sweep(loss: Callable[[float], float], smoothing: float = 0.8) -> tuple[list[Point], Verdict]:
    curve = Curve(smoothing)
    for rate in RATES:
        if not curve.add(rate, loss(rate)):
            break
    return curve.points, judge(curve.points, smoothing)


def test_the_rates_rise_by_the_same_factor_from_the_first_to_the_last() -> None:
    assert RATES[0] == pytest.approx(1e-6)
    assert RATES[-1] == pytest.approx(10.0)
    factors = {round(b / a, 9) for a, b in itertools.pairwise(RATES)}
    assert len(factors) == 1


def test_the_three_regions_of_a_textbook_curve_are_found() -> None:
    points, verdict = sweep(textbook_loss)
    assert verdict.good_from == pytest.approx(1e-4, rel=1.5)
    assert verdict.good_to == pytest.approx(1e-1, rel=1.0)
    assert verdict.suggestion is not None
    assert 1e-4 < verdict.suggestion < 1e-1
    assert verdict.diverged
    assert points[-1].rate < RATES[-1], "it stops early"
    assert [word for word in ("hardly moves", "fastest", "lowest", "rises") if
            any(word in reason for reason in verdict.reasons)] == [
        "hardly moves", "fastest", "lowest", "rises"]  # fmt: skip


def test_a_loss_that_is_no_number_ends_the_sweep_and_counts_as_divergence() -> None:
    def loss(rate: float) -> float:
        return textbook_loss(rate) if rate < 0.05 else math.nan

    points, verdict = sweep(loss)
    assert math.isnan(points[-1].loss)
    assert verdict.diverged
    assert verdict.suggestion is not None
    assert verdict.suggestion < 0.05


def test_a_fault_of_model_or_data_is_told_from_a_wrong_rate() -> None:
    points, verdict = sweep(lambda rate: math.nan)
    assert len(points) == 1
    assert verdict.suggestion is None
    assert "the model or the data is at fault" in verdict.reasons[0]
    _, verdict = sweep(lambda rate: 2.3)
    assert verdict.suggestion is None
    assert "never fell" in verdict.reasons[0]


def test_a_sweep_that_ends_too_early_or_begins_too_late_says_so() -> None:
    _, verdict = sweep(lambda rate: 3.0 - 0.3 * (math.log10(rate) + 6))
    assert not verdict.diverged
    assert "--max-rate" in verdict.reasons[-1]


@given(st.lists(st.floats(0.01, 1e6) | st.just(math.nan) | st.just(math.inf), min_size=1))
def test_any_losses_give_borders_in_their_order(losses: list[float]) -> None:
    curve = Curve(0.9)
    for rate, loss in zip(RATES, losses, strict=False):
        if not curve.add(rate, loss):
            break
    verdict = judge(curve.points, 0.9)
    assert verdict.reasons
    if verdict.suggestion is not None:
        assert verdict.good_from is not None
        assert verdict.good_to is not None
        assert verdict.good_from <= verdict.suggestion <= verdict.good_to


def test_the_plot_is_a_png_and_the_same_each_time() -> None:
    pytest.importorskip("matplotlib", reason="an optional library")
    from tpu_training.job.lr_range_test.plot import draw

    for loss in (textbook_loss, lambda rate: 2.3, lambda rate: math.nan):
        points, verdict = sweep(loss)
        picture = draw(points, verdict, "title")
        assert picture.startswith(b"\x89PNG")
        assert picture == draw(points, verdict, "title")


def test_wrong_borders_are_wrong_input_all_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["lr-range-test", "--data=d", "--model-dir=m"]
    assert main([*job, "--min-rate=1", "--max-rate=0.1", "--sweep-steps=3", "--smoothing=1"]) == 2
    message = capsys.readouterr().err
    for words in ("--min-rate=1 --max-rate=0.1", "--sweep-steps=3", "--smoothing=1"):
        assert words in message


def test_without_matplotlib_it_says_what_to_install_and_what_to_leave_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["lr-range-test", "--data=d", "--model-dir=m"]) == 2
    message = capsys.readouterr().err
    assert "pip install 'tpu-stack-training[plots]'" in message
    assert "--no-plot" in message


def test_a_sweep_over_eight_replicas_leaves_curve_verdict_and_tensorboard(
    cluster: Cluster, bars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tpu_training.data.data_set import open_data
    from tpu_training.job.lr_range_test.run import run_lr_range_test
    from tpu_training.job.lr_range_test.sweep import Sweep

    params = Params(global_batch_size=64)
    job = Job(
        "lr-range-test", None, None, None, "d", str(tmp_path), load_model("mnist_cnn"), params
    )
    run_lr_range_test(cluster, open_data(str(bars)), job, Sweep(1e-5, 10.0, 40, 0.7), plot=False)
    out = capsys.readouterr().out
    folder = tmp_path / "lr_range_test"
    rows = list(csv.DictReader((folder / "curve.csv").open()))
    assert float(rows[0]["learning_rate"]) == pytest.approx(1e-5)
    assert 20 < len(rows) <= 40
    verdict = json.loads((folder / "verdict.json").read_text())
    assert f"lr-range-test finished suggestion={verdict['suggestion']:.2g} " in out
    assert verdict["good_from"] <= verdict["suggestion"] < verdict["good_to"]
    assert list((tmp_path / "tensorboard" / "lr_range_test").glob("events.*"))
    assert not (tmp_path / "checkpoints").exists()
