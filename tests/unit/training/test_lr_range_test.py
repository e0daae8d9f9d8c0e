from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from tpu_training.__main__ import main
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.job.lr_range_test import (
    Curve,
    Point,
    Reading,
    Trials,
    Verdict,
    conclude,
    explore,
    exponential_rates,
    read,
)
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model
from tpu_training.models.spec import Task

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

RATES = exponential_rates(1e-6, 10.0, 141)
PARTED = dataclasses.replace(
    load_model("mnist_cnn"), task=Task("gan", step=lambda *_: ({}, {}), optimizers={"a": {}})
)


def textbook_loss(rate: float) -> float:
    """Flat at 2.3 up to 1e-4, down to 0.3 at 1e-1, and up again above."""
    x = math.log10(rate)
    if x < -4:
        return 2.3
    if x < -1:
        return 2.3 - 2.0 * (x + 4) / 3
    return 0.3 + 8.0 * (x + 1)


def sweep(loss: Callable[[float], float], smoothing: float = 0.8) -> tuple[list[Point], Reading]:
    curve = Curve(smoothing)
    for rate in RATES:
        if not curve.add(rate, loss(rate)):
            break
    return curve.points, read(curve.points, smoothing)


def judge(
    loss: Callable[[float], float],
    train: Callable[[float], float],
    guessing: float | None = math.log(10),
) -> Verdict:
    """Sweep over `loss`, then let `train` give the loss at the end of trials."""
    _, reading = sweep(loss)
    trials = None
    if reading.lowest:
        trials = explore(reading.lowest, reading.first, RATES[0], RATES[-1], train)
    return conclude(reading, trials, 100, guessing)


def trial(rate: float) -> float:
    """As good as it gets from 1e-3 to 1e-1, best at 1e-2; diverges from 0.3 on."""
    if rate > 0.3:
        return math.nan
    return min(2.3, 0.05 + 0.05 * max(0.0, abs(math.log10(rate) + 2)) ** 4)


def test_the_rates_rise_by_the_same_factor_from_the_first_to_the_last() -> None:
    assert RATES[0] == pytest.approx(1e-6)
    assert RATES[-1] == pytest.approx(10.0)
    factors = {round(b / a, 9) for a, b in itertools.pairwise(RATES)}
    assert len(factors) == 1


def test_a_sweep_is_lowest_before_it_rises_and_stops_early() -> None:
    points, reading = sweep(textbook_loss)
    assert reading.lowest == pytest.approx(1e-1, rel=0.5)
    assert (reading.diverged, reading.problem, reading.warning) == (True, "", "")
    assert points[-1].rate < RATES[-1]


def test_the_best_of_the_trials_is_suggested_and_the_good_ones_are_the_region() -> None:
    verdict = judge(textbook_loss, trial)
    assert verdict.suggestion == pytest.approx(1e-2, rel=0.6)
    assert verdict.good_from is not None
    assert verdict.good_to is not None
    assert 1e-4 < verdict.good_from < 3e-3
    assert 3e-2 < verdict.good_to <= 0.3
    assert verdict.diverged
    assert [word for word in ("gets less far", "good peak", "or diverges") if
            any(word in reason for reason in verdict.reasons)] == [
        "gets less far", "good peak", "or diverges"]  # fmt: skip
    json.dumps(dataclasses.asdict(verdict), allow_nan=False)


@pytest.mark.parametrize("best", [1e-4, 1e-3, 1.0])
def test_the_trials_find_a_best_rate_that_lies_decades_from_the_lowest_of_the_sweep(
    best: float,
) -> None:
    def train(rate: float) -> float:
        return math.nan if rate > 5 * best else 0.1 + 0.3 * abs(math.log10(rate / best))

    verdict = judge(textbook_loss, train)
    assert verdict.suggestion == pytest.approx(best, rel=0.9)


def test_a_best_rate_at_the_edge_of_divergence_is_not_suggested() -> None:
    """As the default model on MNIST: 0.014 and 0.043 end alike, and 0.043 trains badly."""
    losses = {1e-3: 0.4, 3e-3: 0.2, 1e-2: 0.12, 3e-2: 0.11, 0.1: math.nan}
    assert Trials(4.9, losses).best == 3e-2
    assert Trials(4.9, losses).middle == pytest.approx(math.sqrt(3e-3 * 3e-2))
    assert Trials(4.9, losses).good == [1e-3, 3e-3, 1e-2, 3e-2]


def lucky(rate: float, tries: list[float]) -> float:
    """Good only where the sweep is lowest, and only at the first try."""
    tries.append(rate)
    return 0.1 if len(tries) == 1 else 1.5


def test_a_rate_that_was_good_by_chance_is_not_suggested() -> None:
    """As lars with an encoder: trainings at the same rate end at 82 and at 90 %."""
    tries: list[float] = []
    verdict = judge(textbook_loss, lambda rate: lucky(rate, tries))
    assert (verdict.suggestion, verdict.good_from, verdict.good_to) == (None, None, None)
    assert "a training of 100 steps ends is chance: the lowest loss is 0.1" in verdict.reasons[0]
    assert "but with other batches 1.5 at" in verdict.reasons[0]
    assert tries[-1] == tries[0]


def test_where_the_middle_of_the_good_rates_is_not_good_the_best_one_is_suggested() -> None:
    tried = {1.0: 0.10, 10**0.5: 0.11, 10**-0.5: 0.9}
    trials = explore(1.0, 2.3, 1e-6, 4.0, lambda rate: tried.get(rate, 0.9))
    assert trials.middle == pytest.approx(10**0.25)
    assert trials.repeated == {trials.middle: 0.9, 1.0: 0.10}
    assert trials.suggestion == 1.0


def test_losses_below_0_are_swept_and_judged_like_others() -> None:
    verdict = judge(lambda rate: textbook_loss(rate) - 5.0, lambda rate: trial(rate) - 5.0, None)
    assert verdict.suggestion == pytest.approx(judge(textbook_loss, trial).suggestion, rel=0.2)


def test_a_fault_of_model_or_data_is_told_from_a_wrong_rate() -> None:
    verdict = judge(lambda rate: math.nan, trial)
    assert verdict.suggestion is None
    assert "the model or the data is the cause" in verdict.reasons[0]
    verdict = judge(lambda rate: 2.3, trial)
    assert verdict.suggestion is None
    assert "never fell" in verdict.reasons[0]
    verdict = judge(textbook_loss, lambda rate: math.nan)
    assert verdict.suggestion is None
    assert "no training of 100 steps stays finite, from 5.6e-05 to 0.18" in verdict.reasons[0]


def test_a_model_that_only_learns_to_guess_gets_no_suggestion() -> None:
    """As with shuffled labels: the loss falls from that of bold mistakes to that of guessing."""
    verdict = judge(lambda rate: 1.8 + textbook_loss(rate), lambda rate: 2.29)
    assert verdict.suggestion is None
    assert "learn more than how to guess" in verdict.reasons[0]
    assert "guessing has 2.3. The labels don't belong to the inputs" in verdict.reasons[0]
    assert judge(textbook_loss, lambda rate: 2.29, guessing=None).suggestion is not None


def test_a_curve_that_breaks_off_without_rising_is_put_down_to_model_or_data() -> None:
    verdict = judge(lambda rate: textbook_loss(rate) if rate < 0.05 else math.nan, trial)
    assert verdict.diverged
    assert verdict.suggestion is not None
    assert "without having risen before; an operation of the model or an ex" in verdict.reasons[-1]


def test_a_missing_region_is_told_with_what_would_show_it() -> None:
    verdict = judge(lambda rate: 3.0 - 0.3 * (math.log10(rate) + 6), lambda rate: 0.5)
    assert not verdict.diverged
    assert "raise --max-rate" in verdict.reasons[-1]
    low = judge(lambda rate: 2.3 + 0.1 * (math.log10(rate) + 6) ** 2 - (rate > 2e-6), lambda _: 0.5)
    assert "is already good; lower --min-rate" in low.reasons[0]


@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf), min_size=1))
def test_any_losses_give_borders_in_their_order(losses: list[float]) -> None:
    curve = Curve(0.9)
    for rate, loss in zip(RATES, losses, strict=False):
        if not curve.add(rate, loss):
            break
    reading = read(curve.points, 0.9)
    ends = iter(losses * 20)
    trials = None
    if reading.lowest:
        trials = explore(reading.lowest, reading.first, 1e-6, 10.0, lambda _: next(ends))
    verdict = conclude(reading, trials, 100, None)
    assert all(verdict.reasons)
    if verdict.suggestion is not None:
        assert verdict.good_from is not None
        assert verdict.good_to is not None
        assert verdict.good_from <= verdict.suggestion <= verdict.good_to


def test_the_plot_is_a_png_and_the_same_each_time() -> None:
    pytest.importorskip("matplotlib", reason="an optional library")
    from tpu_training.job.lr_range_test import draw

    for loss in (textbook_loss, lambda rate: 2.3, lambda rate: math.nan):
        points, verdict = sweep(loss)[0], judge(loss, trial)
        picture = draw(points, verdict, "title")
        assert picture.startswith(b"\x89PNG")
        assert picture == draw(points, verdict, "title")


def test_the_plot_marks_three_regions_from_edge_to_edge_and_the_suggestion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figure = pytest.importorskip("matplotlib.figure", reason="an optional library").Figure
    from tpu_training.job.lr_range_test import draw

    drawn: list[Any] = []
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: drawn.append(self))
    verdict = judge(textbook_loss, trial)
    draw(sweep(textbook_loss)[0], verdict, "title")
    (axes,) = drawn[0].axes
    labels = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert {"too low", "good", "diverging"} <= set(labels)
    assert f"suggestion {verdict.suggestion:.2g}" in [text.get_text() for text in axes.texts]
    spans = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]
    left, right = axes.get_xlim()
    edges = [left, verdict.good_from, verdict.good_to, right]
    assert [span.x0 for span in spans] == pytest.approx(edges[:-1])
    assert [span.x1 for span in spans] == pytest.approx(edges[1:])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--min-rate=1", "--max-rate=0.1"), "--min-rate=1 --max-rate=0.1: expected two rates"),
        (("--sweep-steps=3",), "--sweep-steps: 3: must be at least 20"),
        (("--smoothing=1",), "--smoothing: 1: must be at most 0.999"),
    ],
)
def test_wrong_borders_are_wrong_input(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lr-range-test", "--data=d", "--model-dir=m", *flags]) == 2
    assert words in capsys.readouterr().err


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
    from tpu_training.job.lr_range_test import Sweep, run_lr_range_test
    from tpu_training.monitoring.summaries import read_series

    params, plots = Params(global_batch_size=64), find_spec("matplotlib") is not None
    job = Job(
        "lr-range-test", None, None, None, "d", str(tmp_path), load_model("mnist_cnn"), params
    )
    run_lr_range_test(
        cluster, open_data(str(bars)), job, Sweep(1e-5, 10.0, 40, 0.7, 20), plot=plots
    )
    out = capsys.readouterr().out
    folder = tmp_path / "lr_range_test"
    rows = list(csv.DictReader((folder / "curve.csv").open()))
    assert float(rows[0]["learning_rate"]) == pytest.approx(1e-5)
    assert 20 < len(rows) <= 40
    verdict = json.loads((folder / "verdict.json").read_text())
    assert f"lr-range-test finished suggestion={verdict['suggestion']:.2g} " in out
    assert verdict["good_from"] <= verdict["suggestion"] <= verdict["good_to"]
    assert len(verdict["trials"]) >= 2
    assert verdict["format"] == 1
    assert (folder / "curve.png").exists() == plots
    series = read_series(str(tmp_path / "tensorboard" / "lr_range_test"))
    assert series["lr_range_test/loss"] == {
        int(row["step"]): pytest.approx(float(row["loss"])) for row in rows
    }
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"params": Params(global_batch_size=64, gradient_accumulation=3)}, "divisible by --gradi"),
        ({"model": PARTED}, "--task=gan: has an optimizer for each part, and the test one rate"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    cluster: Cluster, bars: Path, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    from tpu_training.data.data_set import open_data
    from tpu_training.job.lr_range_test import Sweep, run_lr_range_test

    job = Job(
        *("lr-range-test", None, None, None, "d", str(tmp_path / "m")),
        load_model("mnist_cnn"),
        Params(global_batch_size=64),
    )
    job, sweep = dataclasses.replace(job, **changed), Sweep(1e-5, 10.0, 40, 0.7, 20)
    with pytest.raises(InputError, match=words):
        run_lr_range_test(cluster, open_data(str(bars)), job, sweep, plot=False)
    assert not (tmp_path / "m").exists()
