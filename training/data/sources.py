"""Data sets that can be converted: MNIST-like IDX files and scikit-learn's digits."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from training.data.idx import read_idx
from training.errors import DataError, InputError

_IDX_PREFIXES = {"train": "train", "test": "t10k"}
_CLASSES = 10
_DIGITS_TEST_SHARE = 5
_DIGITS_MAXIMUM = 16


@dataclass(frozen=True)
class LabelledImages:
    """Images as unsigned bytes, (count, height, width), and their labels, (count,)."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """A data set in memory."""

    name: str
    classes: int
    splits: dict[str, LabelledImages]


def load_source(source: str, name: str | None) -> Source:
    """Load `digits`, or the IDX files in the directory `source`, under `name`."""
    if source == "digits":
        return _load_digits(name or "digits")
    directory = Path(source)
    if not directory.is_dir():
        raise InputError(
            f"--source={source}: no such directory; expected one with MNIST's four IDX files, or "
            "the word digits"
        )
    splits = {split: _load_idx(directory, prefix) for split, prefix in _IDX_PREFIXES.items()}
    return Source(name or "mnist", _CLASSES, splits)


def _load_idx(directory: Path, prefix: str) -> LabelledImages:
    images_path = _find(directory, f"{prefix}-images", "idx3-ubyte")
    labels_path = _find(directory, f"{prefix}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if not len(images):
        raise DataError(f"{images_path}: no images in it")
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images of "
            f"{images_path.name}; the two files do not belong together"
        )
    if labels.max() >= _CLASSES:
        at = int(np.argmax(labels >= _CLASSES))
        raise DataError(
            f"{labels_path}: label {labels[at]} at position {at}, expected 0 to {_CLASSES - 1}"
        )
    return LabelledImages(images, labels)


def _find(directory: Path, stem: str, kind: str) -> Path:
    """Find STEM-KIND or STEM.KIND, with or without .gz: mirrors name the files differently."""
    names = [f"{stem}{dot}{kind}{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"{directory}: there is no {names[0]} in it, nor {', '.join(names[1:])}")


def _load_digits(name: str) -> Source:
    """Enlarge the 8x8 digits to 24x24, frame them to MNIST's 28x28; each fifth is for the test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise InputError("--source=digits needs scikit-learn: pip install scikit-learn") from error
    digits = load_digits()
    bytes_8x8 = (digits.images * (255 / _DIGITS_MAXIMUM)).round().astype(np.uint8)
    images = np.pad(bytes_8x8.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    labels = digits.target.astype(np.uint8)
    test = np.arange(len(labels)) % _DIGITS_TEST_SHARE == 0
    splits = {
        "train": LabelledImages(images[~test], labels[~test]),
        "test": LabelledImages(images[test], labels[test]),
    }
    return Source(name, _CLASSES, splits)
