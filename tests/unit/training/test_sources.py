"""Data sets of every form become the same files, and what is wrong with them is said."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.data.conversion import Storage, convert, load_source
from tpu_training.data.data_set import open_data
from tpu_training.data.inspection import inspect
from tpu_training.data.manifest import Manifest
from tpu_training.data.preprocessing import parse_examples
from tpu_training.data.source import Options
from tpu_training.data.tables import image_content
from tpu_training.errors import DataError, InputError

pytestmark = pytest.mark.usefixtures("cluster")
if find_spec("datasets") is None:
    pytest.skip("an optional library", allow_module_level=True)

COLORS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
TEXTS = ["good fun", "bad", "a good film", "bad bad film", "good", "so bad", "fun", "not fun"]


def picture(color: tuple[int, int, int], height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.broadcast_to(np.array(color, np.uint8), (height, width, 3))


def write_folder(root: Path, sizes: tuple[tuple[int, int], ...] = ((20, 30), (24, 16))) -> None:
    """For each color a JPEG image of each size, and one PNG image."""
    for name, color in COLORS.items():
        (root / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            encoded = tf.io.encode_jpeg(picture(color, *size)).numpy()
            (root / name / f"{number}.jpg").write_bytes(encoded)
        encoded = tf.io.encode_png(picture(color, *sizes[0])).numpy()
        (root / name / "last.png").write_bytes(encoded)


def read(folder: Path, split: str) -> tuple[list[Any], list[int]]:
    data = open_data(str(folder))
    batch = next(iter(data.shards(split).read_all().batch(1000)))
    features, labels = parse_examples(batch, data.manifest)
    return list(features.numpy()), labels.numpy().tolist()


def to_out(
    source: Path, storage: Storage | None = None, out: str = "out", **options: Any
) -> Manifest:
    return convert(str(source), str(source.parent / out), Options(**options), storage)


def test_a_folder_of_images_keeps_them_encoded_with_the_folders_as_classes(tmp_path: Path) -> None:
    write_folder(tmp_path / "colors")
    manifest = to_out(tmp_path / "colors", test_fraction=0.34)
    assert manifest.name == "colors"
    assert manifest.class_names == ("blue", "green", "red")
    assert (manifest.encoding, manifest.spec.shape) == ("encoded", (0, 0, 3))
    seen = []
    for split, count in (("train", 6), ("test", 3)):
        images, labels = read(tmp_path / "out", split)
        assert len(images) == count
        for image, label in zip(images, labels, strict=True):
            mean = tf.io.decode_image(image).numpy().reshape(-1, 3).mean(axis=0)
            color = COLORS[manifest.class_names[label]]
            assert mean == pytest.approx(color, abs=3)
        seen += images
    assert len(set(seen)) == 9
    found = inspect(str(tmp_path / "out"))
    assert found.splits["train"].smallest[0] == 20
    assert "sizes from 20x16 to 24x30" in str(found)


def test_folders_for_training_and_test_are_kept_apart(tmp_path: Path) -> None:
    write_folder(tmp_path / "s" / "train", sizes=((8, 8),))
    write_folder(tmp_path / "s" / "val", sizes=((8, 8), (8, 8)))
    manifest = to_out(tmp_path / "s", Storage(encoding="raw"))
    assert (manifest.encoding, manifest.spec.shape) == ("raw", (8, 8, 3))
    assert [manifest.split(s).examples for s in ("train", "test")] == [6, 9]


def not_an_image(folder: Path) -> None:
    (folder / "red" / "notes.txt").write_text("no image at all")


def half_an_image(folder: Path) -> None:
    path = folder / "red" / "0.jpg"
    path.write_bytes(path.read_bytes()[:100])


def an_empty_class(folder: Path) -> None:
    (folder / "white").mkdir()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (not_an_image, "notes.txt: neither JPEG nor PNG"),
        (half_an_image, "0.jpg: can't be decoded as an image"),
        (an_empty_class, "white: this class's folder contains no image"),
    ],
)
def test_a_broken_image_folder_is_named_and_leaves_no_output(
    tmp_path: Path, damage: Callable[[Path], None], words: str
) -> None:
    write_folder(tmp_path / "colors")
    damage(tmp_path / "colors")
    with pytest.raises(DataError) as caught:
        to_out(tmp_path / "colors")
    assert words in str(caught.value)
    assert not list(tmp_path.glob("out/*"))


def test_raw_images_of_different_sizes_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "colors")
    with pytest.raises(DataError, match=r"--encoding=encoded"):
        to_out(tmp_path / "colors", Storage(encoding="raw"))


def test_the_pixels_of_a_csv_file_become_square_images(tmp_path: Path) -> None:
    lines = ["label,p1,p2,p3,p4"] + [f"{n % 3},{n},0,0,255" for n in range(20)]
    (tmp_path / "pixels.csv").write_text("\n".join(lines))
    manifest = to_out(tmp_path / "pixels.csv", test_fraction=0.25)
    assert (manifest.name, manifest.spec.shape, manifest.spec.classes) == ("pixels", (2, 2, 1), 3)
    parts = [read(tmp_path / "out", split) for split in ("train", "test")]
    images, labels = [*parts[0][0], *parts[1][0]], [*parts[0][1], *parts[1][1]]
    assert sorted(image[0, 0, 0] for image in images) == list(range(20))
    assert [image[0, 0, 0] % 3 for image in images] == labels


def test_csv_texts_become_tokens_with_a_vocabulary_next_to_them(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    lines = [f'"{text}",{"neg" if "bad" in text else "pos"}' for text in TEXTS]
    (tmp_path / "s" / "train.csv").write_text("\n".join(["text,label", *lines]))
    (tmp_path / "s" / "test.csv").write_text('text,label\n"a good, bad film",pos\n')
    manifest = to_out(tmp_path / "s", Storage(text_length=8, vocabulary_size=60), name="films")
    tokens = (tmp_path / "out" / manifest.vocabulary).read_text().splitlines()
    assert manifest.class_names == ("neg", "pos")
    assert (manifest.spec.kind, manifest.spec.shape) == ("text", (8,))
    assert manifest.spec.vocabulary == len(tokens) <= 60
    ((ids,), (label,)) = read(tmp_path / "out", "test")
    assert [tokens[i] for i in ids] == [
        "[CLS]",
        "a",
        "good",
        "[UNK]",
        "bad",
        "film",
        "[SEP]",
        "[PAD]",
    ]
    assert label == 1
    assert inspect(str(tmp_path / "out")).splits["test"].mean_length == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; expected a header row with the names of the columns"),
        ("label,text", "the split train is empty"),
        ("name,text\n1,2", "there is no column label, only name, text; name the columns with"),
        ("label,p1\n1,x", "row 1: column p1 has 'x'; expected pixels, whole numbers from 0"),
        ("label,p1\n1,2\n1,nan", "row 2: column p1 has 'nan'; expected pixels"),
        ("label,p1\n1,256", "row 1: column p1 has '256'; expected"),
        ("label\n1", "0 pixel columns do not form a square image"),
        ("label,p1,p2\n1,2,3\n0,1,2", "2 pixel columns do not form a square image"),
        (
            "label,text\n0,2\n,2",
            "data.csv row 2: the label is empty; fill it in, or remove the row",
        ),
        ("label,text\n0,2\n0.5,2", "data.csv row 2: label 0.5; labels must be whole numbers"),
        ("label,text\ngood,a\n ,b", "data.csv row 2: the label is empty"),
        ("label,text\n1,a\nnan,b", "data.csv row 2: the label is empty"),
        ("label,text\n1,a\n-2,b", "data.csv row 2: label -2; labels must be whole numbers from 0"),
        ("label,text\n1,a\n0", "1 values in row 2, expected 2"),
        ("label,text\n1,a\n\n0,b,c", "3 values in row 2, expected 2"),
        ("label,text\n1,a,b\n0,b,c", "3 values in row 1, expected 2"),
        ('label,text\n1,"a', "can't be read as CSV"),
        ("PK\3\4\0,label,text\n1,2,a", "contains NUL bytes, so it is not CSV"),
        ("label,text\n1,a", "into 1 for training and 0 for test;"),
    ],
)
def test_an_invalid_csv_file_fails_with_one_message(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "data.csv").write_text(text)
    with pytest.raises(InputError) as caught:
        to_out(tmp_path / "data.csv")
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("written", "names", "numbers"),
    [
        ("0 1 2", (), [0, 1, 2]),
        ("2.0 0 1", (), [2, 0, 1]),
        ("1 5 10", ("1", "5", "10"), [0, 1, 2]),
        ("cat dog ant", ("ant", "cat", "dog"), [1, 2, 0]),
        ('"cat" "7" "7"', ("7", "cat"), [1, 0, 0]),
    ],
)
@pytest.mark.parametrize("column", ["p1", "text"])
def test_labels_are_numbered_without_gaps_and_keep_their_names(
    tmp_path: Path, column: str, written: str, names: tuple[str, ...], numbers: list[int]
) -> None:
    rows = [f"{n},{label}" for n, label in enumerate(written.split())]
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("\n".join([f"{column},label", *rows]))
    source = load_source(str(tmp_path), Options())
    assert (source.classes, source.class_names) == (len(set(numbers)), names)
    examples = sorted(source.splits["train"].read(), key=lambda example: example.place)
    assert [example.label for example in examples] == numbers


def test_a_label_that_only_the_test_split_has_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n1,1\n2,2\n")
    (tmp_path / "test.csv").write_text("text,label\n1,1\n2,3\n")
    with pytest.raises(DataError, match=r"test\.csv row 2: label '3' is not among .* 2: 1, 2"):
        load_source(str(tmp_path), Options())


def test_a_file_that_is_not_utf8_is_refused_with_the_command_that_converts_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "data.csv").write_bytes("text,label\nb,0\ncafé,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"`iconv -f WINDOWS-1252 -t UTF-8 data\.csv"):
        load_source(str(tmp_path / "data.csv"), Options())


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[UNK]", "[CLS]", "[SEP]"], r"has no token \[PAD\]"),
        (["[UNK]", "[PAD]", "[CLS]", "[SEP]"], r"has \[PAD\] at 1; it must be the first"),
    ],
)
def test_an_invalid_vocabulary_is_refused(tmp_path: Path, tokens: list[str], words: str) -> None:
    (tmp_path / "data.csv").write_text("text,label\n" + "a,0\nb,1\n" * 5)
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    with pytest.raises(DataError, match=words):
        to_out(tmp_path / "data.csv", Storage(vocabulary=str(tmp_path / "vocab.txt")))


def test_links_in_a_source_cannot_read_files_outside_of_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(bytes(tf.io.encode_png(picture((1, 2, 3), 6, 6)).numpy()))
    write_folder(tmp_path / "photos")
    (folder,) = sorted((tmp_path / "photos").iterdir())[:1]
    (folder / "link.png").symlink_to(secret)
    with pytest.raises(DataError, match=rf"link\.png: leads to {secret}, outside of"):
        to_out(tmp_path / "photos")
    for name in ("images", "masks"):
        (tmp_path / "lakes" / name).mkdir(parents=True)
        (tmp_path / "lakes" / name / "1.png").symlink_to(secret)
    with pytest.raises(DataError, match=rf"1\.png: leads to {secret}, outside of"):
        to_out(tmp_path / "lakes")


@pytest.mark.parametrize("path", ["{}/secret.png", "../secret.png"])
def test_paths_in_a_hugging_face_row_cannot_read_files_outside_the_source(
    tmp_path: Path, path: str
) -> None:
    value = {"bytes": None, "path": path.format(tmp_path)}
    (tmp_path / "secret.png").write_bytes(b"SECRET")
    with pytest.raises(DataError, match=rf"leads to {tmp_path}/secret\.png, outside of"):
        image_content(value, tmp_path / "saved", "row 1")


def test_data_sets_of_tensorflow_datasets_are_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("tensorflow_datasets")
    # To write one, 4.9.10 imports this backport and does not ask for it.
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    kinds = {
        "image": library.features.Image(shape=(6, 6, 3)),
        "label": library.features.ClassLabel(names=["blue", "green", "red"]),
    }
    rows = [{"image": picture(c, 6, 6), "label": n} for n, c in enumerate(COLORS.values())] * 4
    library.dataset_builders.store_as_tfds_dataset(
        name="colors",
        version="1.0.0",
        features=library.features.FeaturesDict(kinds),
        split_datasets={"train": list(enumerate(rows)), "test": list(enumerate(rows[:3]))},
        data_dir=tmp_path,
    )
    source = tmp_path / "colors" / "1.0.0"
    manifest = convert(str(source), str(tmp_path / "out"), Options(), Storage(encoding="raw"))
    assert manifest.name == "colors"
    assert manifest.class_names == ("blue", "green", "red")
    assert (manifest.encoding, manifest.spec.shape) == ("raw", (6, 6, 3))
    images, labels = read(tmp_path / "out", "train")
    assert len(images) == 12
    assert [tuple(image[0, 0]) for image in images] == [list(COLORS.values())[n] for n in labels]


def test_a_library_that_is_missing_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")

    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"needs datasets: pip install .*\[datasets\]"):
        convert(str(tmp_path), str(tmp_path / "out"))


def test_an_unknown_source_is_refused_with_the_known_formats(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"unknown format; .*CSV"):
        convert(str(tmp_path), str(tmp_path / "out"))
