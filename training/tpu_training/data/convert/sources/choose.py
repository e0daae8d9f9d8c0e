"""From `--source` to the reader of its form."""

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


# The first that recognises the folder; a folder of folders may be anything, so it comes last.
_FORMS: tuple[_Form, ...] = (hugging_face, tfds, idx_files, csv_files, image_folder)


def load_source(source: str, options: Options) -> Source:
    """Read what `source` is: a folder or file in one of the forms, or the word digits.

    Raises InputError when there is nothing, DataError when it is not what its form says.
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
        f"--source={source}: is none of the forms that can be converted: a folder with MNIST's "
        "four IDX files, a folder of images with a folder for each class (or train/ and test/ with "
        "such), a CSV file or a folder with train.csv and test.csv, a data set of Hugging Face's "
        "save_to_disk or of TensorFlow Datasets, or the word digits"
    )
