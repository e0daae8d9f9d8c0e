"""Choose the reader for `--source`."""

from collections.abc import Callable
from pathlib import Path

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


# What recognises a path and what reads it. The first that does wins: image_folder, which takes any
# folder of folders, is last.
_FORMS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Options], Source]], ...] = (
    (hugging_face.matches, hugging_face.load),
    (tfds.matches, tfds.load),
    (idx_files.matches, idx_files.load),
    (csv_files.matches, csv_files.load),
    (text_file.matches, text_file.load),
    (conll.matches, conll.load),
    (masks.matches, masks.load),
    (data_function.matches, data_function.load),
    (parquet.matches, parquet.load),
    (webdataset.matches, webdataset.load),
    (image_folder.matches, image_folder.load),
)


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
    for matches, load in _FORMS:
        if matches(path):
            return load(path, options)
    raise InputError(
        f"--source={source}: unknown format; expected a folder with MNIST's four IDX files, a "
        "folder with one folder of images per class (or train/ and test/ with such), a folder "
        "with images/ and masks/, a CSV file or a folder with train.csv and test.csv, a .txt file "
        "for a language model, a .conll file with a class for each word, a data set written by "
        "Hugging Face's save_to_disk or by TensorFlow Datasets, Parquet files, WebDataset's tar "
        "files, a Python file with a function dataset(split, context), tfds:NAME of TensorFlow "
        "Datasets, or the word digits"
    )
