"""Choose the reader for `--source`."""

from pathlib import Path
from typing import Protocol

from tpu_training.data.convert.source import Options, Source
from tpu_training.data.convert.sources import (
    conll,
    csv_files,
    data_function,
    digits,
    hugging_face,
    idx_files,
    image_folder,
    masks,
    parquet,
    text_file,
    tfds,
    webdataset,
)
from tpu_training.errors import InputError

DIGITS = "digits"


class _Form(Protocol):
    def matches(self, path: Path, /) -> bool: ...
    def load(self, path: Path, options: Options, /) -> Source: ...


# The first that recognises the folder wins; image_folder accepts any folder of folders, so it is
# last.
_FORMS: tuple[_Form, ...] = (
    *(hugging_face, tfds, idx_files, csv_files, text_file, conll, masks),
    *(data_function, parquet, webdataset, image_folder),
)
# Forms that are a single file as well.
_FILES: tuple[_Form, ...] = (csv_files, text_file, conll, data_function, parquet, webdataset)


def load_source(source: str, options: Options) -> Source:
    """Read `source`: a folder or file in one of the formats, tfds:NAME, or the word digits.

    Raises:
        InputError: It does not exist or has an unknown format.
        DataError: It does not conform to its format.
    """
    if source == DIGITS:
        return digits.load(options)
    if source.startswith(tfds.BY_NAME):
        return tfds.load_by_name(source, options)
    path = Path(source)
    if not path.exists():
        raise InputError(f"--source={source}: no such file or directory")
    for form in _FORMS:
        if (path.is_dir() or form in _FILES) and form.matches(path):
            return form.load(path, options)
    raise InputError(
        f"--source={source}: unknown format; expected a folder with MNIST's four IDX files, a "
        "folder with one folder of images per class (or train/ and test/ with such), a folder "
        "with images/ and masks/, a CSV file or a folder with train.csv and test.csv, a .txt file "
        "for a language model, a .conll file with a class for each word, a data set written by "
        "Hugging Face's save_to_disk or by TensorFlow Datasets, Parquet files, WebDataset's tar "
        "files, a Python file with a function dataset(split, context), tfds:NAME of TensorFlow "
        "Datasets, or the word digits"
    )
