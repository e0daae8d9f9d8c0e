"""`data convert`: read a source and write it as sharded TFRecord files with a manifest."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpu_training.data import function
from tpu_training.data.convert import arrays, tables, text, tfds
from tpu_training.data.convert.source import TEXT, Example, Options, Source, with_validation
from tpu_training.data.convert.text import Tokenizer, learn_vocabulary
from tpu_training.data.manifest import ENCODED, FILE_NAME, RAW, Manifest, stored_spec
from tpu_training.errors import DataError, InputError

if TYPE_CHECKING:
    from tpu_training.data.convert.records import Encoder


VOCABULARY_FILE = "vocabulary.txt"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Storage:
    """How to store the examples.

    Attributes:
        encoding: `raw` or `encoded` for images; None stores them as the source does.
        text_length: The number of token ids per text.
        vocabulary: A vocabulary file; None makes a vocabulary from the training texts.
        vocabulary_size: The largest size of a vocabulary made from the training texts.
    """

    encoding: str | None = None
    text_length: int = 128
    vocabulary: str | None = None
    vocabulary_size: int = 8192


def convert(
    source: str, output: str, options: Options | None = None, storage: Storage | None = None
) -> Manifest:
    """Convert `source`, as `load_source` takes it, into the directory `output`.

    Checks everything that needs no decoding before writing the first file. Writes the manifest
    last, so a directory with a manifest is complete.
    """
    refuse_used(Path(output))
    options = options or Options()
    data = with_validation(load_source(source, options), options)
    return store(data, output, storage or Storage())


def store(data: Source, output: str, storage: Storage) -> Manifest:
    """Write `data` into the directory `output`, which must be new or empty."""
    directory = Path(output)
    refuse_used(directory)
    tokens = list(data.tokens)
    if data.kind == TEXT and not data.vocabulary:
        tokens = _vocabulary(data, storage)
    encoder = _encoder(data, storage, tokens)
    with new_folder(directory):
        manifest = _write(data, tokens, encoder, directory)
    encoder.warn()
    counts = ", ".join(f"{split.examples} {name}" for name, split in manifest.splits.items())
    logger.info("data: wrote %s (%s) to %s", data.name, counts, directory)
    return manifest


def _write(data: Source, tokens: list[str], encoder: Encoder, directory: Path) -> Manifest:
    """Write all files, the manifest last."""
    # TensorFlow takes seconds to load, so the input is checked first.
    from tpu_training.data.convert.records import write_split

    prefix = _UNSAFE.sub("-", data.name).strip("-.") or "data"
    splits = {
        split: write_split(directory, f"{prefix}-{split}", examples, encoder, data.targets)
        for split, examples in data.splits.items()
    }
    if tokens:
        (directory / VOCABULARY_FILE).write_text("\n".join(tokens) + "\n", encoding="utf-8")
    spec = stored_spec(
        encoder.encoding, encoder.shape, data.classes, encoder.vocabulary, data.targets
    )
    vocabulary = VOCABULARY_FILE if tokens else ""
    manifest = Manifest(prefix, spec, encoder.encoding, splits, data.class_names, vocabulary)
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _encoder(data: Source, storage: Storage, tokens: list[str]) -> Encoder:
    from tpu_training.data.convert.records import Images, Tokens

    if data.vocabulary:
        (length,) = np.shape(next(data.splits["train"].read()).feature)
        return Tokens(lambda feature: np.asarray(feature).tolist(), length, data.vocabulary)
    if data.kind == TEXT:
        tokenizer, length = Tokenizer(tokens), storage.text_length
        return Tokens(lambda text: tokenizer.encode(str(text), length), length, tokenizer.size)
    return Images(storage.encoding or (ENCODED if _is_encoded(data) else RAW))


def _is_encoded(data: Source) -> bool:
    first: Example = next(data.splits["train"].read())
    return isinstance(first.feature, bytes)


def _vocabulary(data: Source, storage: Storage) -> list[str]:
    """Read the tokens from the given file, or make them from the training texts."""
    if storage.vocabulary is None:
        texts = (str(example.feature) for example in data.splits["train"].read())
        tokens = learn_vocabulary(texts, storage.vocabulary_size)
        logger.info("data: made a vocabulary of %d tokens", len(tokens))
        return tokens
    path = Path(storage.vocabulary)
    try:
        tokens = path.read_text(encoding="utf-8").splitlines()
        Tokenizer(tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--vocabulary={path}: can't be read ({error})") from error
    except ValueError as error:
        raise DataError(
            f"--vocabulary={path}: {error}; expected one token per line, as in BERT's vocab.txt"
        ) from error
    return tokens


DIGITS = "digits"
# What recognises a path and what reads it. The first that does wins: tables, which takes any folder
# of folders, is last.
_FORMS: tuple[tuple[Callable[[Path], bool], Callable[[Path, Options], Source]], ...] = (
    (tfds.matches, tfds.load),
    (arrays.is_idx, arrays.load_idx),
    (text.is_characters, text.load_characters),
    (text.is_words, text.load_words),
    (arrays.is_masks, arrays.load_masks),
    (function.is_function_file, function.load_examples),
    (tables.matches, tables.load),
)


def load_source(source: str, options: Options) -> Source:
    """Read `source`: a folder or file in one of the formats, tfds:NAME, or the word digits.

    Raises:
        InputError: It does not exist or has an unknown format.
        DataError: It does not conform to its format.
    """
    if source == DIGITS:
        return arrays.load_digits(options)
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


_CURE = "give a new folder, or remove this one"


def refuse_used(directory: Path) -> None:
    """Raise InputError if `directory` holds something: a second set would mix with the first."""
    if not directory.is_dir():
        return
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if FILE_NAME in names:
        what = f"holds {_data_set(directory / FILE_NAME)} already"
    elif names:
        what = f"is not empty ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
    else:
        return
    raise InputError(f"--output={directory}: {what}; {_CURE}")


@contextmanager
def new_folder(directory: Path) -> Iterator[None]:
    """Create `directory` with missing parents; after an error remove what was made in it, and it.

    Raises:
        InputError: It can't be created or written.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    found = set(directory.iterdir()) if directory.is_dir() else set()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in set(directory.iterdir()) - found if directory.is_dir() else ():
            path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"--output={directory}: can't be written ({error})") from error
        raise


def _data_set(manifest: Path) -> str:
    with suppress(OSError, ValueError, LookupError, TypeError):
        return f"the data set {json.loads(manifest.read_text(encoding='utf-8'))['name']}"
    return "a data set"
