"""Choose the reader for `--source`."""

from pathlib import Path
from typing import Protocol

from tpu_training.data.convert.source import Options, Source
from tpu_training.data.convert.sources import (
    csv_files,
    digits,
    hugging_face,
    idx_files,
    image_folder,
    tfds,
)
from tpu_training.errors import InputError

DIGITS = "digits"


class _Form(Protocol):
    def matches(self, path: Path, /) -> bool: ...
    def load(self, path: Path, options: Options, /) -> Source: ...


# The first that recognises the folder wins; image_folder accepts any folder of folders, so it is
# last.
_FORMS: tuple[_Form, ...] = (hugging_face, tfds, idx_files, csv_files, image_folder)


def load_source(source: str, options: Options) -> Source:
    """Read `source`: a folder or file in one of the formats, or the word digits.

    Raises:
        InputError: It does not exist or has an unknown format.
        DataError: It does not conform to its format.
    """
    if source == DIGITS:
        return digits.load(options)
    path = Path(source)
    if not path.exists():
        raise InputError(f"--source={source}: no such file or directory")
    for form in _FORMS:
        if (path.is_dir() or form is csv_files) and form.matches(path):
            return form.load(path, options)
    raise InputError(
        f"--source={source}: unknown format; expected a folder with MNIST's four IDX files, a "
        "folder with one folder of images per class (or train/ and test/ with such), a CSV file or "
        "a folder with train.csv and test.csv, a data set written by Hugging Face's save_to_disk "
        "or by TensorFlow Datasets, or the word digits"
    )
