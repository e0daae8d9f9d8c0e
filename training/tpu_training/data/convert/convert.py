"""`data convert`: write a data set as sharded TFRecord files with a manifest."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpu_training.data.convert.output import new_folder, refuse_used
from tpu_training.data.convert.source import TEXT, Example, Options, Source, with_validation
from tpu_training.data.convert.sources.choose import load_source
from tpu_training.data.convert.wordpiece import Tokenizer, learn_vocabulary
from tpu_training.data.manifest import ENCODED, FILE_NAME, RAW, Manifest, stored_spec
from tpu_training.errors import DataError, InputError

if TYPE_CHECKING:
    from tpu_training.data.convert.encode import Encoder

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
    """Convert `source` (see data/convert/sources) into the directory `output`.

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


def _write(data: Source, tokens: list[str], encoder: "Encoder", directory: Path) -> Manifest:
    """Write all files, the manifest last."""
    # TensorFlow takes seconds to load, so the input is checked first.
    from tpu_training.data.convert.write import write_split

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


def _encoder(data: Source, storage: Storage, tokens: list[str]) -> "Encoder":
    from tpu_training.data.convert.encode import EncodedImages, Ids, RawImages, Tokens

    if data.vocabulary:
        return Ids(np.shape(next(data.splits["train"].read()).feature), data.vocabulary)
    if data.kind == TEXT:
        return Tokens(Tokenizer(tokens), storage.text_length)
    if storage.encoding == RAW or (storage.encoding is None and not _is_encoded(data)):
        return RawImages()
    assert storage.encoding in (ENCODED, None)
    return EncodedImages()


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
