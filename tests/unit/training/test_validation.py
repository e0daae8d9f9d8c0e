"""What is held out for validation: the same for every host, start and cache."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from tpu_training.__main__ import parse
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.manifest import VALIDATION
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.data.validation import hold_out, with_fraction
from tpu_training.errors import CheckpointError, InputError
from tpu_training.job.job import check_local_files
from tpu_training.models.params import Params
from tpu_training.monitoring.summaries import read_series

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("cluster")]

PARAMS = Params(global_batch_size=12, evaluation_batch_size=12, seed=5, validation_fraction=0.2)
HELD = 21  # A fifth of 103.


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_training.data.shards._FILES_PER_LANE", 1)
    monkeypatch.setattr("tpu_training.data.shards._window", lambda *_: 7)


def held_out(data: DataSet, params: Params = PARAMS, hosts: int = 1) -> list[int]:
    """The numbers of the validation examples, read by so many hosts."""
    seen: list[int] = []
    for host in range(hosts):
        rows = evaluation_rows(data, params, hosts, host, VALIDATION)
        for images, _, weights in rows.as_numpy_iterator():
            seen += images[weights == 1, 0, 0, 0].tolist()
    return seen


def trained_on(data: DataSet, params: Params, first: int, steps: int) -> list[list[int]]:
    rows = training_rows(data, params, first, 1, 0).take(steps).as_numpy_iterator()
    return [images[:, 0, 0, 0].tolist() for images, _ in rows]


@pytest.mark.parametrize("hosts", [1, 3])
def test_each_example_is_either_trained_on_or_validated_with_and_each_once(
    numbered: DataSet, hosts: int
) -> None:
    data = hold_out(numbered, PARAMS)
    assert data.manifest.split("validation").examples == HELD
    assert data.manifest.split("train").examples == 103 - HELD
    held = held_out(data, hosts=hosts)
    assert len(held) == len(set(held)) == HELD
    for cache in ("memory", "none"):
        params = dataclasses.replace(PARAMS, cache=cache)
        seen = set(chain(*trained_on(data, params, 0, 40)))
        assert seen == set(range(103)) - set(held), cache
        assert trained_on(data, params, 5, 4) == trained_on(data, params, 0, 9)[5:], cache


def test_the_seed_alone_chooses_the_records(numbered: DataSet) -> None:
    """The numbers are written down: no release of NumPy may change them."""
    assert sorted(held_out(hold_out(numbered, PARAMS))) == CHOSEN
    other = dataclasses.replace(PARAMS, seed=6)
    assert sorted(held_out(hold_out(numbered, other))) != CHOSEN


# All of one file, which has examples of all classes though these come in turn.
CHOSEN = [number for number in range(103) if (number + number // 5) % 5 == 1]


def test_every_class_is_held_out_if_the_source_alternates_classes(numbered: DataSet) -> None:
    held = held_out(hold_out(numbered, PARAMS))
    assert {number % 10 for number in held} == set(range(10))


def test_a_tenth_is_held_out_if_evaluations_have_no_other_split(
    numbered: DataSet,
) -> None:
    manifest = numbered.manifest
    assert with_fraction(Params(), manifest).validation_fraction == 0.0
    assert with_fraction(Params(evaluation_interval=5), manifest).validation_fraction == 0.1
    own = dataclasses.replace(
        manifest, splits={**manifest.splits, "validation": manifest.split("test")}
    )
    assert with_fraction(Params(evaluation_interval=5), own).validation_fraction == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--validation_fraction=0.001", "103 training examples .* 103 for training and 0 for val"),
        ("--patience=3", "--patience=3: .*--evaluation_interval=STEPS"),
    ],
)
def test_invalid_validation_settings_are_refused_before_tensorflow_loads(
    numbered: DataSet, tmp_path: Path, given: str, message: str
) -> None:
    job = parse(["train", f"--data={numbered.directory}", f"--model-dir={tmp_path}", given])
    with pytest.raises(InputError, match=message):
        check_local_files(job)  # type: ignore[arg-type]


def test_a_validation_fraction_is_refused_if_the_data_set_has_a_validation_split(
    numbered: DataSet,
) -> None:
    held = hold_out(numbered, PARAMS)
    with pytest.raises(InputError, match="has a split validation of 21 examples; omit it"):
        with_fraction(PARAMS, held.manifest)


SIZES = ("--epochs=8", "--global_batch_size=64", "--evaluation_batch_size=64", "--seed=3")
STOPPING = ("--evaluation_interval=5", "--patience=2", "--checkpoint_interval=7")


@pytest.fixture(scope="module")
def stopped(
    bars: Path, tmp_path_factory: pytest.TempPathFactory, run_here: Callable[..., None]
) -> Path:
    """The model directory of a training on the bars that ended early."""
    folder = tmp_path_factory.mktemp("stopped")
    run_here("train-and-evaluate", f"--data={bars}", f"--model-dir={folder}", *SIZES, *STOPPING)
    return folder


def test_the_best_is_chosen_on_the_validation_set_and_the_test_set_looked_at_once(
    stopped: Path,
) -> None:
    metrics = json.loads((stopped / "metrics.json").read_text())
    series = read_series(str(stopped / "tensorboard"))
    validated = series["validation/accuracy"]
    assert len(validated) > 2
    assert metrics["best_accuracy"] == pytest.approx(max(validated.values()))
    assert validated[metrics["best_step"]] == pytest.approx(metrics["best_accuracy"])
    assert metrics["validation_examples"] == 64
    assert list(series["test/accuracy"]) == [metrics["steps"]]
    assert metrics["test_examples"] == 1003
    assert (stopped / "best" / f"ckpt-{metrics['best_step']}.index").exists()


def test_training_stops_after_patience_evaluations_without_improvement(
    stopped: Path, bars: Path, run_here: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = json.loads((stopped / "metrics.json").read_text())
    assert metrics["steps"] == metrics["best_step"] + 10 < 72
    assert (stopped / "checkpoints" / f"ckpt-{metrics['steps']}.index").exists()
    run_here("train-and-evaluate", f"--data={bars}", f"--model-dir={stopped}", *SIZES, *STOPPING)
    assert "progress step=" not in capsys.readouterr().out
    assert json.loads((stopped / "metrics.json").read_text())["steps"] == metrics["steps"]


def test_a_checkpoint_trained_on_held_out_records_is_refused(
    stopped: Path, bars: Path, run_here: Callable[..., None]
) -> None:
    where = ("train", f"--data={bars}", f"--model-dir={stopped}", *SIZES)
    for changed in ("--validation_fraction=0.3", "--seed=4"):
        with pytest.raises(CheckpointError, match=r"was trained .*held out; .*--model-dir"):
            run_here(*where, "--evaluation_interval=5", changed)


def test_convert_writes_the_split_too(
    numbered: DataSet, tmp_path: Path, run_here: Callable[..., None]
) -> None:
    arguments = ("--source", Path(numbered.directory).parent, "--output")
    run_here("data", "convert", *arguments, tmp_path / "data", "--validation-fraction=0.2")
    data = open_data(str(tmp_path / "data"))
    counts = {name: split.examples for name, split in data.manifest.splits.items()}
    assert counts == {"train": 82, "test": 103, "validation": 21}
    seen = set(chain(*trained_on(data, PARAMS, 0, 7)))
    assert seen.isdisjoint(held_out(data))
    assert seen | set(held_out(data)) == set(range(103))
    for fraction, words in (
        ("0.001", "=0.001: .*both need at least one"),
        ("1", ": 1: must be at most"),
    ):
        with pytest.raises(InputError, match=f"--validation-fraction{words}"):
            run_here(
                "data", "convert", *arguments, tmp_path / "new", f"--validation-fraction={fraction}"
            )
    assert not (tmp_path / "new").exists()
