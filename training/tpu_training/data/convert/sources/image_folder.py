"""Read folders of JPEG and PNG images, one folder per class."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import (
    IMAGE,
    Examples,
    Options,
    Source,
    pick,
    refuse_outside,
    shuffled,
    split_at_random,
)
from tpu_training.data.manifest import MAGICS
from tpu_training.errors import DataError

# The first that is there is for testing, the next one for validation.
_TEST_NAMES = ("test", "val", "validation")
_MOST_NAMED = 3


def matches(directory: Path) -> bool:
    """Return whether `directory` contains folders."""
    return directory.is_dir() and bool(_folders(directory))


def load(directory: Path, options: Options) -> Source:
    """Read DIRECTORY/train/CLASS and DIRECTORY/test/CLASS, or split DIRECTORY/CLASS.

    Only the files' first bytes are checked here; images are decoded when they are written.

    Raises:
        DataError: A class is empty, or a file is not an image.
    """
    name = options.name or directory.resolve().name
    if not (directory / "train").is_dir():
        classes = [folder.name for folder in _folders(directory)]
        files, labels = _list(directory, classes, directory)
        positions = split_at_random(len(files), options, str(directory))
        splits = {s: _examples(files, labels, order) for s, order in positions.items()}
        return Source(name, IMAGE, len(classes), splits, tuple(classes))
    others = [directory / name for name in _TEST_NAMES if (directory / name).is_dir()]
    if not others:
        raise DataError(
            f"{directory}: contains a folder train, but none of {', '.join(_TEST_NAMES)}"
        )
    classes = [folder.name for folder in _folders(directory / "train")]
    for other in others:
        if unknown := {folder.name for folder in _folders(other)} - set(classes):
            raise DataError(
                f"{other}: contains the class {min(unknown)}, which {directory / 'train'} does not"
            )
    splits = {}
    folders = [directory / "train", *others]
    for split, folder in zip(("train", "test", "validation"), folders, strict=False):
        files, labels = _list(folder, classes, directory)
        splits[split] = _examples(files, labels, shuffled(len(files), options.seed))
    return Source(name, IMAGE, len(classes), splits, tuple(classes))


def _folders(directory: Path) -> list[Path]:
    return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))


def _list(
    directory: Path, classes: list[str], root: Path
) -> tuple[list[Path], npt.NDArray[np.int64]]:
    """List all images with their labels, sorted by class and name."""
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        folder = directory / name
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        found = [path for path in found if path.is_file() and not path.name.startswith(".")]
        refuse_outside(found, root)
        if not found:
            raise DataError(f"{folder}: this class's folder contains no image")
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"{directory}: contains no folder with images")
    if wrong := [str(path) for path in files if not _is_image(path)]:
        more = f" and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
        raise DataError(
            f"{', '.join(wrong[:_MOST_NAMED])}{more}: neither JPEG nor PNG; convert or remove them"
        )
    return files, np.array(labels, np.int64)


def _is_image(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8).startswith(MAGICS)


def _examples(
    files: list[Path], labels: npt.NDArray[np.int64], order: npt.NDArray[np.int64]
) -> Examples:
    def content(position: int) -> bytes:
        return files[position].read_bytes()

    return pick(order, lambda position: str(files[position]), content, labels)
