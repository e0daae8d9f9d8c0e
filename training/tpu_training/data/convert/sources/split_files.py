"""Files whose names say which split they belong to."""

from collections.abc import Sequence
from pathlib import Path

from tpu_training.errors import DataError

# What the names of files, or of their folders, begin with; the first test split that is there is
# for testing, the next one for validation.
_TRAIN = "train"
_OTHERS = ("test", "validation", "valid", "val", "dev")
# Where Hugging Face's repositories keep them.
_FOLDER = "data"


def find_splits(path: Path, suffix: str) -> dict[str, list[Path]]:
    """Return the files of `train` and, where their names say so, of `test` and `validation`.

    Raises:
        DataError: Only some names say what they belong to.
    """
    if path.is_file():
        return {_TRAIN: [path]}
    files = _list(path, suffix)
    named = {file: _split_of(file.relative_to(path)) for file in files}
    if not any(named.values()):
        return {_TRAIN: files}
    if unnamed := [file for file, split in named.items() if split is None]:
        raise DataError(
            f"{unnamed[0]}: its name begins with none of {_TRAIN}, {', '.join(_OTHERS)}, as others "
            "there do; rename or remove it"
        )
    if _TRAIN not in named.values():
        raise DataError(f"{path}: contains no file whose name begins with {_TRAIN}")
    found = [name for name in _OTHERS if name in named.values()]
    names = dict(zip((_TRAIN, "test", "validation"), (_TRAIN, *found), strict=False))
    return {split: [file for file in files if named[file] == name] for split, name in names.items()}


def holds(path: Path, suffix: str) -> bool:
    """Return whether `path` is a file with `suffix`, or a folder with such files."""
    return path.suffix == suffix if path.is_file() else bool(_list(path, suffix))


def _list(path: Path, suffix: str) -> list[Path]:
    """Return the files in the folder and in those within it that are called as splits are."""
    folders = [path, *(path / name for name in (_FOLDER, _TRAIN, *_OTHERS))]
    return sorted(file for folder in folders for file in folder.glob(f"*{suffix}"))


def _split_of(file: Path) -> str | None:
    parts: Sequence[str] = (file.stem, *reversed(file.parts[:-1]))
    found = (name for part in parts for name in (_TRAIN, *_OTHERS) if part.startswith(name))
    return next(found, None)
