"""Read MNIST-like data sets: four IDX files in a folder."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.labels import check_labels
from tpu_training.data.convert.source import IMAGE, Examples, Options, Source, pick
from tpu_training.data.convert.sources.idx import read_idx
from tpu_training.errors import DataError

_PREFIXES = {"train": "train", "test": "t10k"}
_CLASSES = 10


def matches(directory: Path) -> bool:
    """Return whether `directory` contains an IDX file."""
    return directory.is_dir() and any(directory.glob("*ubyte*"))


def load(directory: Path, options: Options) -> Source:
    """Read all four files, with labels 0 to 9."""
    splits: dict[str, Examples] = {}
    for split, prefix in _PREFIXES.items():
        images, labels = _load(directory, prefix)
        images = images[..., np.newaxis]
        order = np.arange(len(labels))
        splits[split] = pick(order, str, images.__getitem__, labels)
    return Source(options.name or "mnist", IMAGE, _CLASSES, splits)


def _load(directory: Path, prefix: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    images_path = _find(directory, f"{prefix}-images", "idx3-ubyte")
    labels_path = _find(directory, f"{prefix}-labels", "idx1-ubyte")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1).astype(np.int64)
    if not len(images):
        raise DataError(f"{images_path}: contains no images")
    if len(images) != len(labels):
        raise DataError(
            f"{labels_path}: {len(labels)} labels for the {len(images)} images of "
            f"{images_path.name}; the two files do not match"
        )
    check_labels({prefix: labels}, _CLASSES, str(labels_path))
    return images, labels


def _find(directory: Path, stem: str, kind: str) -> Path:
    """Find STEM-KIND or STEM.KIND, with or without .gz: mirrors name the files differently."""
    names = [f"{stem}{dot}{kind}{end}" for dot in "-." for end in ("", ".gz")]
    for name in names:
        if (directory / name).is_file():
            return directory / name
    raise DataError(f"{directory}: contains neither {names[0]} nor {', '.join(names[1:])}")
