"""A training reads files while a conversion writes them, whatever becomes of either."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.patience import PATIENCE
from tpu_training.data import arrays, conversion, data_set, output, shards
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, check_order, open_data
from tpu_training.data.manifest import FILE_NAME, PLAN, PROGRESS
from tpu_training.data.pipeline import training_rows
from tpu_training.data.source import Example, Examples, Source
from tpu_training.errors import DataError, InputError, Interrupted
from tpu_training.models.params import Params

pytestmark = pytest.mark.training

COUNT, FILES, BATCH, STEPS = 45, 7, 4, 28
ROWS = np.random.default_rng(3).normal(size=(COUNT, 3)).astype(np.float32)
PARAMS = Params(global_batch_size=BATCH, seed=5, order="stream")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven files, two of them at a time, into folders that count as buckets."""
    monkeypatch.setattr(conversion, "_count_shards", lambda *_: FILES)
    monkeypatch.setattr(conversion, "_CHUNK", 4)
    monkeypatch.setattr(output, "_AT_ONCE", 2)
    monkeypatch.setattr(output, "_BEAT_SECONDS", 0.0)
    monkeypatch.setattr(output, "is_bucket", lambda _: True)
    monkeypatch.setattr(shards, "_FILES_PER_WINDOW", 2)
    monkeypatch.setattr(shards, "LOOK_SECONDS", 0.05)


def source(at: Callable[[int], None] = lambda _: None, rows: Any = ROWS) -> Source:
    """The rows; `at` is called with the number of each that is read to train with."""
    given = arrays.source_of_arrays(
        "data", dict.fromkeys(("train", "test"), (rows, CLASSES[: len(rows)])), ()
    )
    train = given.splits["train"]

    def read() -> Iterator[Example]:
        for number, example in enumerate(train.read()):
            at(number)
            yield example

    splits = given.splits | {"train": Examples(train.count, read)}
    return dataclasses.replace(given, splits=splits)


CLASSES = np.arange(COUNT) % 3


def dies_at(end: int) -> Callable[[int], None]:
    def at(number: int) -> None:
        if number == end:
            raise SystemExit("killed")

    return at


def folder_in(path: Path) -> str:
    path.mkdir()
    return str(path)


def read(data: DataSet, first: int, steps: int) -> list[Any]:
    rows = training_rows(data, PARAMS, first, 1, 0).take(steps).as_numpy_iterator()
    return [(features.tolist(), targets.tolist()) for features, targets in rows]


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    """What a training reads that begins after the conversion."""
    folder = folder_in(tmp_path / "whole")
    store(source(), folder, Storage())
    return read(open_data(folder), 0, STEPS)


def readable(data: DataSet, first: int) -> int:
    """How many steps from `first` on have their files."""
    if data.growth is None:
        return STEPS - first
    found = (n for n in range(STEPS - first) if not data.growth.has((first + n + 1) * BATCH))
    return next(found, STEPS - first)


@pytest.mark.parametrize("seed", range(2))
def test_steps_have_the_same_examples_wherever_conversion_and_training_die(
    tmp_path: Path, expected: list[Any], seed: int
) -> None:
    folder, seen = folder_in(tmp_path / "streamed"), list[Any]()
    deaths = np.sort(np.random.default_rng(seed).integers(9, COUNT, 3)).tolist()
    for end in [*deaths, COUNT]:
        if end < COUNT:
            with pytest.raises(SystemExit, match="killed"):
                store(source(dies_at(end)), folder, Storage())
        else:
            store(source(), folder, Storage())
        # A training that was killed begins again, here, at the step that it had saved.
        data = open_data(folder, streams=True)
        assert (data.growth is None) == (end == COUNT)
        seen += read(data, len(seen), readable(data, len(seen)))
    assert seen == expected
    assert len({tuple(row) for features, _ in seen for row in features}) == COUNT


def test_a_training_reads_two_epochs_while_the_conversion_stalls(
    tmp_path: Path, expected: list[Any]
) -> None:
    folder, stalled, gate = folder_in(tmp_path / "streamed"), threading.Event(), threading.Event()

    def stall(number: int) -> None:
        if number == 30:
            stalled.set()
            gate.wait(PATIENCE)

    writing = threading.Thread(target=store, args=(source(stall), folder, Storage()))
    writing.start()
    assert stalled.wait(PATIENCE)
    data = open_data(folder, streams=True)
    assert 0 < readable(data, 0) < STEPS
    threading.Timer(0.5, gate.set).start()
    assert read(data, 0, STEPS) == expected
    writing.join()
    assert (Path(folder) / FILE_NAME).exists()


def test_the_first_epoch_is_in_the_order_of_the_files_and_mixed_within_those_of_a_window(
    expected: list[Any],
) -> None:
    numbers = [ROWS.tolist().index(row) for features, _ in expected for row in features]
    first, second = numbers[:COUNT], numbers[COUNT : 2 * COUNT]
    assert sorted(first) == sorted(second) == list(range(COUNT))
    window = COUNT * 2 // FILES
    assert max(first[:window]) < COUNT // 3
    assert first[:window] != sorted(first[:window])
    assert max(second[:window]) > COUNT // 3


@pytest.fixture
def killed(tmp_path: Path) -> str:
    folder = folder_in(tmp_path / "killed")
    with pytest.raises(SystemExit, match="killed"):
        store(source(dies_at(30)), folder, Storage())
    return folder


def test_another_order_waits_for_the_whole_data_set(killed: str) -> None:
    message = rf"--data={killed}: is still converted, and 4 of 7 training files are there; wait"
    with pytest.raises(DataError, match=message):
        open_data(killed)


def test_a_silent_conversion_ends_the_wait_and_says_what_to_do(
    killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_set, "_PATIENCE_SECONDS", 0.2)
    looks = list[None]()
    growth = open_data(killed, streams=True, alive=lambda: looks.append(None)).growth
    assert growth
    growth.wait(20, lambda: None)
    assert looks == []
    with pytest.raises(DataError, match="4 of 7 training files are there, and the conversion has"):
        growth.wait(COUNT, lambda: None)
    assert looks


def test_a_wait_ends_with_the_job(killed: str) -> None:
    def end() -> None:
        raise Interrupted("SIGTERM")

    growth = open_data(killed, streams=True).growth
    assert growth
    with pytest.raises(Interrupted):
        growth.wait(COUNT, end)


def test_another_source_can_not_continue_a_conversion(killed: str) -> None:
    with pytest.raises(InputError, match="an unfinished conversion of another source, or with"):
        store(source(rows=ROWS[::-1].copy()), killed, Storage())
    with pytest.raises(InputError, match="an unfinished conversion of another source, or with"):
        store(source(rows=ROWS[:40]), killed, Storage())
    store(source(), killed, Storage())
    assert open_data(killed).manifest.split("train").examples == COUNT


def test_wrong_examples_remove_what_is_there_and_end_the_wait(killed: str) -> None:
    growth = open_data(killed, streams=True).growth
    assert growth

    def wrong(number: int) -> None:
        if number == 35:
            raise DataError("row 35 is wrong")

    with pytest.raises(DataError, match="row 35"):
        store(source(wrong), killed, Storage())
    assert not [*Path(killed).iterdir()]
    with pytest.raises(DataError, match="contains no manifest"):
        open_data(killed, streams=True)
    with pytest.raises(DataError, match="its conversion failed and removed what was there"):
        growth.wait(COUNT, lambda: None)


def test_a_plan_that_is_just_being_written_tells_nothing(killed: str) -> None:
    growth = open_data(killed, streams=True).growth
    assert growth
    plan, progress = Path(killed) / PLAN, Path(killed) / PROGRESS
    plan.write_text(plan.read_text()[:-1])
    progress.write_text(f"{FILES:08d}" + progress.read_text()[8:])
    growth.wait(COUNT, lambda: None)
    assert growth.finished == FILES


def test_another_conversion_into_the_same_folder_ends_the_training(
    killed: str,
) -> None:
    growth = open_data(killed, streams=True).growth
    assert growth
    for path in Path(killed).iterdir():
        path.unlink()
    with pytest.raises(SystemExit):
        store(source(dies_at(20), ROWS[::-1].copy()), killed, Storage())
    with pytest.raises(DataError, match="another conversion writes there now"):
        growth.wait(COUNT, lambda: None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"cache": "memory"}, "--cache=memory: keeps all examples for another order"),
        ({"validation_fraction": 0.1}, "--validation_fraction=0.1: would hold out training"),
    ],
)
def test_what_does_not_hold_for_a_stream_is_refused(
    killed: str, params: dict[str, Any], message: str
) -> None:
    data = open_data(killed, streams=True)
    check_order(data, PARAMS)
    with pytest.raises(InputError, match=message):
        check_order(data, dataclasses.replace(PARAMS, **params))


def test_a_conversion_is_alive_while_it_skips_what_is_there(killed: str) -> None:
    said = set[str]()

    def look(number: int) -> None:
        if number < 20:
            said.add((Path(killed) / PROGRESS).read_text())

    store(source(look), killed, Storage())
    assert len(said) > 10
