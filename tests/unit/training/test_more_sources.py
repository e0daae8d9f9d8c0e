"""Parquet, WebDataset, tf.data functions and datasets by name become the same files."""

from __future__ import annotations

import gzip
import importlib.resources
import io
import shutil
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_training.data.conversion import Storage, convert
from tpu_training.data.data_set import open_data
from tpu_training.data.manifest import Manifest, no_manifest
from tpu_training.data.preprocessing import parse_examples
from tpu_training.data.source import Options
from tpu_training.errors import DataError, InputError

pytestmark = pytest.mark.usefixtures("cluster")
NEEDS_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="an optional library")


def png(value: int, size: int = 4) -> bytes:
    content: bytes = tf.io.encode_png(
        tf.fill((size, size, 3), tf.constant(value, tf.uint8))
    ).numpy()
    return content


def to_out(source: Path, **options: Any) -> tuple[Manifest, Path]:
    out = source.parent / "out"
    return convert(str(source), str(out), Options(**options), Storage(text_length=4)), out


def contents(folder: Path, split: str) -> dict[Any, int]:
    """The label of each example, by its image's first pixel or its first token."""
    data = open_data(str(folder))
    features, labels = parse_examples(
        next(iter(data.shards(split).read_all().batch(1000))), data.manifest
    )
    if features.dtype == tf.string:
        keys = [int(tf.io.decode_image(image)[0, 0, 0]) for image in features]
    else:
        keys = tf.reshape(features, (len(labels), -1))[:, 0].numpy().tolist()
    return dict(zip(keys, labels.numpy().tolist(), strict=True))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@NEEDS_DATASETS
def test_webdataset_shards_give_images_and_classes(tmp_path: Path) -> None:
    for shard in range(2):
        members: dict[str, bytes] = {}
        for number in range(shard * 4, shard * 4 + 4):
            members[f"./x/{number:04}.png"] = png(number)
            members[f"./x/{number:04}.cls"] = b"cat" if number % 2 else b"dog\n"
        write_tar(tmp_path / "set" / f"train-{shard:04}.tar", members)
    members = {"a.png": png(9), "a.cls": b"cat", "b.png.gz": b"", ".hidden": b""}
    write_tar(tmp_path / "set" / "test-0000.tar", members)
    manifest, out = to_out(tmp_path / "set")
    assert (manifest.encoding, manifest.class_names) == ("encoded", ("cat", "dog"))
    assert contents(out, "train") == {number: 1 - number % 2 for number in range(8)}
    assert contents(out, "test") == {9: 0}


@NEEDS_DATASETS
def test_links_in_a_shard_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("SECRET")
    path = tmp_path / "train.tar"
    members: dict[str, bytes] = {}
    for number in range(10):
        members |= {f"{number}.txt": b"a text", f"{number}.cls": [b"cat", b"dog"][number % 2]}
    write_tar(path, members)
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("x.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
        archive.addfile(link)
    manifest, _ = to_out(path)
    assert (manifest.spec.kind, manifest.class_names) == ("text", ("cat", "dog"))
    assert manifest.split("train").examples == 9


@NEEDS_DATASETS
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": None}, r"train\.tar: there is no column label, only __key__, __url__, png"),
        ({"a.png": None, "a.cls": b""}, r"train\.tar a: the label is empty"),
        ({"a.png": None, "a.cls": b"1", "b.cls": b"1"}, r"train\.tar: can't be read .*same types"),
        ({"README": b"x"}, r"train\.tar: can't be read"),
    ],
)
def test_an_incomplete_shard_is_named(
    tmp_path: Path, members: dict[str, bytes | None], message: str
) -> None:
    image = png(1)
    parts = {name: image if content is None else content for name, content in members.items()}
    write_tar(tmp_path / "train.tar", parts)
    with pytest.raises(DataError, match=message):
        to_out(tmp_path / "train.tar")
    assert not (tmp_path / "out").exists()


@NEEDS_DATASETS
def test_a_file_that_is_not_a_tar_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar file" * 100)
    with pytest.raises(DataError, match=r"x\.tar: can't be read as an uncompressed tar file"):
        to_out(tmp_path / "x.tar")


@NEEDS_DATASETS
def test_parquet_files_give_images_and_the_names_of_their_classes(tmp_path: Path) -> None:
    import datasets

    kinds = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"])
    )
    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, numbers in (("train", range(6)), ("test", range(6, 8)), ("validation", [8, 9])):
        images = [{"bytes": png(number), "path": None} for number in numbers]
        labels = [number % 2 for number in numbers]
        table = datasets.Dataset.from_dict({"image": images, "label": labels}, kinds)
        table.to_parquet(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet")
    manifest, out = to_out(tmp_path / "set")
    assert manifest.class_names == ("cat", "dog")
    assert set(manifest.splits) == {"train", "test", "validation"}
    assert contents(out, "train") == {number: number % 2 for number in range(6)}
    assert contents(out, "validation") == {8: 0, 9: 1}


@NEEDS_DATASETS
def test_a_parquet_file_of_texts_is_split_at_random(tmp_path: Path) -> None:
    import datasets

    rows = {"review": ["good"] * 5 + ["bad"] * 5, "stars": [5] * 5 + [1] * 5}
    datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "reviews.parquet")
    with pytest.raises(DataError, match="there is no column label, only review, stars; name the"):
        to_out(tmp_path / "reviews.parquet")
    manifest, out = to_out(tmp_path / "reviews.parquet", feature="review", label="stars")
    assert (manifest.spec.kind, manifest.class_names) == ("text", ("1", "5"))
    assert manifest.split("train").examples == 9
    shutil.rmtree(out)
    manifest, out = to_out(tmp_path / "reviews.parquet", feature="review", target=("stars",))
    shutil.rmtree(out)
    assert manifest.spec.targets == "numbers"
    floats = datasets.Dataset.from_dict({"x": [[0.5, 1.5]] * 4, "label": [0, 1] * 2})
    floats.to_parquet(tmp_path / "floats.parquet")
    with pytest.raises(DataError, match=r"column x is .*float.*, expected images or strings"):
        to_out(tmp_path / "floats.parquet", feature="x")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"broken\.parquet: can't be read"):
        to_out(tmp_path / "b" / "broken.parquet")


@NEEDS_DATASETS
@pytest.mark.parametrize("kind", ["gzip", "zip", "tar"])
def test_an_archive_named_parquet_is_refused_unopened(tmp_path: Path, kind: str) -> None:
    """The library unpacks by content: what would come out has no limit of size."""
    path = tmp_path / "rows.parquet"
    if kind == "gzip":
        path.write_bytes(gzip.compress(b"PAR1" * 1000))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("rows.parquet", b"PAR1" * 1000)
    else:
        write_tar(path, {"rows.parquet": b"PAR1" * 1000})
    with pytest.raises(DataError, match=r"rows\.parquet: can't be read: it isn't a Parquet file"):
        to_out(path)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.parquet"]


FUNCTION = """
import tensorflow as tf


def dataset(split, context):
    if split == "validation":
        return None
    first, count = (0, 10) if split == "train" else (10, 2)
    numbers = tf.data.Dataset.range(first, first + count)
    numbers = numbers.shuffle(count, seed=context.seed, reshuffle_each_iteration=False)
    return numbers.map(lambda n: (tf.fill((2, 2, 1), tf.cast(n, tf.uint8)), n % 3))
"""


def test_a_data_function_gives_its_splits(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    manifest, out = to_out(tmp_path / "mine.py")
    assert (manifest.name, manifest.encoding, manifest.spec.classes) == ("mine", "raw", 3)
    assert contents(out, "train") == {number: number % 3 for number in range(10)}
    assert contents(out, "test") == {10: 1, 11: 2}


def test_a_data_function_that_draws_other_labels_in_each_pass_is_refused(tmp_path: Path) -> None:
    """The first three labels are fixed, so that each pass has all classes."""
    drawn = "tf.where(n < 3, n, tf.random.uniform((), 0, 3, tf.int64))"
    text = FUNCTION.replace("n % 3", drawn).replace("(0, 10)", "(0, 100)")
    (tmp_path / "mine.py").write_text(
        text.replace('"validation"', '"validation" or split == "test"')
    )
    message = r"split train: another pass returned another example \d+; derive all randomness from"
    with pytest.raises(InputError, match=message):
        to_out(tmp_path / "mine.py", test_fraction=0.3)


def test_a_data_function_without_a_test_split_is_split_at_random(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        FUNCTION.replace('"validation"', '"validation" or split == "test"')
    )
    manifest, out = to_out(tmp_path / "mine.py", test_fraction=0.3)
    assert {name: split.examples for name, split in manifest.splits.items()} == {
        "train": 7,
        "test": 3,
    }
    both = contents(out, "train") | contents(out, "test")
    assert both == {number: number % 3 for number in range(10)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def dataset", "def data", r"mine\.py: lacks a function `dataset\(split, context\)`"),
        ("return numbers.map", "return None and", r"mine\.py:5: returned None for the split train"),
        (
            "    return numbers.map",
            "    return [] and",
            r"mine\.py:5: returned a list, expected a tf\.data",
        ),
        ("first, count = (0", "first, count = (1 / 0", r"mine\.py:8: ZeroDivisionError"),
        ("n % 3", "[n]", r"mine\.py:5: split train: gave a class other than 0 to 1"),
        (
            "(2, 2, 1)",
            "(2 + n % 2, 2, 1)",
            r"(split test yields Form|returned an example of the shape \[\d,2,1\], but the first)",
        ),
        ("first + count)", "first + count).repeat()", r"split train never ends; remove repeat"),
        ("first + count)", "first)", r"mine\.py:5: split train is empty"),
        (
            "tf.fill((2, 2, 1), tf.cast(n, tf.uint8))",
            "tf.cast(tf.random.uniform((2, 2, 1), 0, 255, tf.int32), tf.uint8)",
            r"split train: another pass returned another example \d+; derive all randomness from",
        ),
        ("n % 3", "tf.debugging.assert_less(n, 3) or n", r"mine\.py:\d+: after 0 examples|TypeE"),
    ],
)
def test_errors_of_a_data_function_name_its_file_and_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in FUNCTION
    (tmp_path / "mine.py").write_text(FUNCTION.replace(old, new))
    with pytest.raises(InputError, match=message):
        to_out(tmp_path / "mine.py")
    assert not (tmp_path / "out").exists()


def test_a_data_set_of_tensorflow_datasets_is_prepared_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("tensorflow_datasets", reason="an optional library")
    # To write one, 4.9.10 imports this backport and does not ask for it.
    monkeypatch.setitem(sys.modules, "importlib_resources", importlib.resources)
    kinds = {
        "image": library.features.Image(shape=(4, 4, 3), encoding_format="png"),
        "label": library.features.ClassLabel(names=["even", "odd"]),
    }
    rows = [{"image": np.full((4, 4, 3), n, np.uint8), "label": n % 2} for n in range(6)]
    counts = {"train": 6, "test": 2, "validation": 3}
    library.dataset_builders.store_as_tfds_dataset(
        name="parity",
        version="1.0.0",
        features=library.features.FeaturesDict(kinds),
        split_datasets={name: list(enumerate(rows[:n])) for name, n in counts.items()},
        data_dir=tmp_path / "prepared",
    )
    monkeypatch.setattr(library.core.constants, "DATA_DIR", str(tmp_path / "prepared"))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    manifest = convert("tfds:parity", str(tmp_path / "out"))
    assert (manifest.name, manifest.class_names) == ("parity", ("even", "odd"))
    assert contents(tmp_path / "out", "train") == {number: number % 2 for number in range(6)}
    assert manifest.split("validation").examples == 3
    with pytest.raises(DataError, match=r"tfds:nothing_like_it: .*can't prepare it"):
        convert("tfds:nothing_like_it", str(tmp_path / "other"))


class FakeHub:
    """What `huggingface_hub` answers for one repository, whose files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[Any]()

    def list_repo_files(self, **where: str) -> list[str]:
        if where["repo_id"] != "ada/words":
            raise OSError("404 Client Error\nRepository Not Found")
        files = sorted(self.folder.rglob("*.*"))
        return [str(file.relative_to(self.folder)) for file in files]

    def snapshot_download(self, allow_patterns: list[str], **where: str) -> str:
        from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

        self.asked.append((allow_patterns, where))
        names = self.list_repo_files(**where)
        copied = self.folder.with_name("snapshot")
        for name in filter_repo_objects(names, allow_patterns=allow_patterns):
            (copied / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / name, copied / name)
        return str(copied)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    for place in ("data", "small", "large"):
        (fake.folder / place).mkdir(parents=True)
        for split, count in (("train", 3), ("test", 1)):
            rows = "0,good\n1,bad\n" * count
            (fake.folder / place / f"{split}-0.csv").write_text(f"label,text\n{rows}")
    (fake.folder / "words.py").write_text("raise SystemExit('ran')")
    library = pytest.importorskip("huggingface_hub", reason="an optional library")
    for name in ("list_repo_files", "snapshot_download"):
        monkeypatch.setattr(library, name, getattr(fake, name))
    return fake


@NEEDS_DATASETS
@pytest.mark.parametrize(
    ("name", "place", "revision"),
    [
        ("hf:ada/words", "data", {}),
        ("hf:ada/words/small@v1.0", "small", {"revision": "v1.0"}),
        ("hf:ada/words/large@refs/convert/parquet", "large", {"revision": "refs/convert/parquet"}),
    ],
)
def test_a_data_set_of_the_hub_is_converted_by_its_name_and_only_its_tables_are_fetched(
    tmp_path: Path, hub: FakeHub, name: str, place: str, revision: dict[str, str]
) -> None:
    manifest = convert(name, str(tmp_path / "out"))
    assert (manifest.name, manifest.split("train").examples) == ("words", 6)
    where = {"repo_id": "ada/words", "repo_type": "dataset", **revision}
    assert hub.asked == [([f"{place}/test-0.csv", f"{place}/train-0.csv"], where)]


@NEEDS_DATASETS
def test_names_with_signs_of_patterns_are_fetched_from_the_hub(
    tmp_path: Path, hub: FakeHub
) -> None:
    for split in ("train", "test"):
        file = hub.folder / "small" / f"{split}-0.csv"
        file.rename(file.with_name(f"{split}-[0*1]?.csv"))
    manifest = convert("hf:ada/words/small", str(tmp_path / "out"))
    assert [manifest.split(split).examples for split in ("train", "test")] == [6, 2]


@NEEDS_DATASETS
def test_of_several_forms_at_one_place_of_the_hub_parquet_alone_is_fetched(
    tmp_path: Path, hub: FakeHub
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["good", "bad"] * 2, "label": [0, 1] * 2}
    for split in ("train", "test"):
        path = str(hub.folder / "small" / f"{split}-0.parquet")
        datasets.Dataset.from_dict(rows).to_parquet(path)
    manifest = convert("hf:ada/words/small", str(tmp_path / "out"))
    assert manifest.split("train").examples == 4
    assert hub.asked[0][0] == ["small/test-0.parquet", "small/train-0.parquet"]


@NEEDS_DATASETS
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:words", r"hf:words: expected hf:OWNER/NAME\[/FOLDER\]\[@REVISION\]"),
        ("hf:ada/none", r"hf:ada/none: can't be downloaded \(404 .*\); .* gated, set HF_TOKEN"),
        (
            "hf:ada/words/tiny",
            r"hf:ada/words/tiny: has no CSV, Parquet or tar files there; name one of the folders "
            r"data, large, small, as in hf:ada/words/data",
        ),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_wrong_name_of_the_hub_is_refused_before_anything_is_fetched(
    tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises((DataError, InputError), match=words):
        convert(name, str(tmp_path / "out"))


@pytest.mark.parametrize("source", ["mine.py", "rows.parquet", "tfds:mnist", "hf:ada/words"])
def test_sources_that_need_converting_are_refused_with_the_command(source: str) -> None:
    with pytest.raises(DataError, match=rf"data convert --source={source} --output=DIRECTORY`"):
        raise no_manifest(source)


@NEEDS_DATASETS
def test_folders_and_tables_keep_a_validation_set_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for number, name in enumerate(("train", "test", "val")):
        rows = "0,good\n1,bad\n" * (number + 1)
        (tmp_path / "tables" / f"{name}.csv").write_text(f"label,text\n{rows}")
        for label in ("cat", "dog"):
            folder = tmp_path / "images" / name / label
            folder.mkdir(parents=True)
            (folder / "0.png").write_bytes(png(number))
    for source in ("tables", "images"):
        out = tmp_path / f"{source}-out"
        convert(str(tmp_path / source), str(out))
        data = open_data(str(out))
        assert list(data.manifest.splits) == ["train", "test", "validation"]
        for number, (name, split) in enumerate(data.manifest.splits.items()):
            if source == "tables":
                assert split.examples == 2 * (number + 1)
            else:
                assert set(contents(out, name)) == {number}
