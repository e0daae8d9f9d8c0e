"""Sources of other targets than classes are converted and read back."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorflow")

from tpu_training.__main__ import parse
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.inspection import inspect
from tpu_training.data.preprocessing import parse_examples
from tpu_training.errors import DataError, InputError
from tpu_training.job.job import Job

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("cluster")]
NEEDS_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="an optional library")


def convert(source: Path, *flags: str) -> DataSet:
    output = source.parent / "out"
    command = parse(["data", "convert", f"--source={source}", f"--output={output}", *flags])
    assert not isinstance(command, Job)
    assert command() == 0
    return open_data(str(output))


def read(data: DataSet, split: str) -> tuple[Any, Any]:
    records = data.shards(split).read_all().batch(1000)
    features, targets = parse_examples(next(iter(records)), data.manifest)
    return features.numpy(), targets.numpy()


def test_a_text_becomes_characters_each_of_which_is_predicted_once(tmp_path: Path) -> None:
    text = "to be,\nor not\t" * 20
    (tmp_path / "play.txt").write_text(text)
    data = convert(tmp_path / "play.txt", "--text-length=11", "--test-fraction=0.25")
    names = (tmp_path / "out" / "vocabulary.txt").read_text().splitlines()
    assert names[:3] == ["[PAD]", "\\t", "\\n"]
    assert data.manifest.spec.vocabulary == len(names)
    pieces, targets = read(data, "test")
    characters = [name.encode().decode("unicode_escape") for name in names]
    joined = "".join(characters[number] for row in pieces for number in row[:-1])
    assert text[210:].startswith(joined)
    assert len(joined) == 60
    assert all(a[-1] == b[0] for a, b in itertools.pairwise(pieces))
    assert targets.shape == (6,)
    assert data.manifest.spec.targets == "nothing"
    assert "targets: nothing" in str(inspect(data.directory))


@NEEDS_DATASETS
@pytest.mark.parametrize("flag", ["--target=year,price", "--labels=old,dear"])
def test_columns_become_numbers_or_labels(tmp_path: Path, flag: str) -> None:
    names = flag.partition("=")[2]
    values = ["1998.5,-3", "2001,1e2", "1970,0"] if "target" in flag else ["1,0", "0,1", "1,1"]
    rows = [f"some text {i},{values[i % 3]}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join([f"text,{names}", *rows]) + "\n")
    data = convert(tmp_path / "t.csv", flag, "--text-length=8")
    spec = data.manifest.spec
    assert (spec.targets, spec.classes) == ("numbers" if "target" in flag else "labels", 2)
    assert data.manifest.class_names == tuple(names.split(","))
    _, targets = read(data, "train")
    expected = {tuple(float(part) for part in row.split(",")) for row in values}
    assert {tuple(row) for row in targets.tolist()} == expected
    assert f"{names.split(',')[0]}" in data.manifest.to_json()
    inspect(data.directory)


@NEEDS_DATASETS
def test_pixel_columns_may_come_with_columns_of_numbers_to_learn(tmp_path: Path) -> None:
    rows = [",".join(map(str, [i, 10, i / 4, 20, 30])) for i in range(20)]
    (tmp_path / "p.csv").write_text("\n".join(["a,b,age,c,d", *rows]) + "\n")
    data = convert(tmp_path / "p.csv", "--target=age")
    images, ages = read(data, "train")
    assert images.shape[1:] == (2, 2, 1)
    assert np.array_equal(ages[:, 0] * 4, images[:, 0, 0, 0])


@NEEDS_DATASETS
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--target=age",), "p.csv row 3: age is 'old', expected a number"),
        (("--labels=age",), "p.csv row 2: age is '2', expected 0 or 1"),
        (("--target=years",), "there is no column years, only text, age"),
        (("--target=age", "--label=age"), "--label, --target and --labels exclude each other"),
    ],
)
def test_a_non_numeric_target_is_named_with_its_row(
    tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    (tmp_path / "p.csv").write_text("text,age\na,1\nb,2\nc,old\n")
    with pytest.raises(InputError) as caught:
        convert(tmp_path / "p.csv", *flags)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_masks_are_stored_with_their_images(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")

    folder = tmp_path / "set"
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for i in range(10):
        pixels = np.full((6, 5, 3), 20 * i, np.uint8)
        mask = np.where(np.arange(30).reshape(6, 5) < 3 * i, 2, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{i}.png")
    data = convert(folder)
    spec = data.manifest.spec
    assert (spec.targets, spec.classes, spec.shape) == ("mask", 3, (6, 5, 3))
    images, masks = read(data, "train")
    counts = [int((mask == 2).sum()) for mask in masks]
    assert counts == [3 * int(image[0, 0, 0]) // 20 for image in images]
    assert set(np.unique(masks)) <= {-1, 2}
    inspect(data.directory)


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")

    for part, size in (("images", (4, 4, 3)), ("masks", (4, 5))):
        (tmp_path / "set" / part).mkdir(parents=True)
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / "set" / part / "a.png")
    with pytest.raises(DataError, match=r"a\.png: has \(4, 4\) pixels, its mask \(4, 5\)"):
        convert(tmp_path / "set")
