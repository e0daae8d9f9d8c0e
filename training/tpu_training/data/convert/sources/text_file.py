"""Read a plain text for a language model: its characters are the tokens.

The text is cut into pieces that overlap by one character, so that each is predicted once.
"""

import logging
import re
from pathlib import Path

import numpy as np

from tpu_training.data.convert.source import TEXT, Options, Source, pick, shuffled
from tpu_training.errors import DataError
from tpu_training.models.spec import NOTHING

_PADDING = "[PAD]"
# Lines such as those of text classification: a word or number, a tab, a text.
_LABELLED, _LOOKED_AT = re.compile(r"\S{1,40}\t[^\t]+"), 20

logger = logging.getLogger(__name__)


def matches(path: Path) -> bool:
    """Return whether `path` is a .txt file or a folder with a train.txt."""
    return path.suffix.lower() == ".txt" if path.is_file() else (path / "train.txt").is_file()


def load(path: Path, options: Options) -> Source:
    """Read FILE.txt, whose last part is for testing, or FOLDER/train.txt and FOLDER/test.txt."""
    if path.is_file():
        text = _read(path)
        kept = len(text) - round(len(text) * options.test_fraction)
        texts = {"train": text[:kept], "test": text[kept:]}
    else:
        texts = {split: _read(path / f"{split}.txt") for split in ("train", "test")}
    lines = texts["train"].splitlines()[:_LOOKED_AT]
    if lines and all(_LABELLED.fullmatch(line) for line in lines):
        logger.warning(
            "data: %s becomes the text of a language model, but its lines look like a label, a tab "
            "and a text; to learn the labels, write it as CSV with a header and name its columns "
            "with --feature and --label",
            path,
        )
    characters = sorted(set("".join(texts.values())))
    ids = {character: number for number, character in enumerate(characters, 1)}
    splits = {}
    for split, content in texts.items():
        numbers = np.array([ids[character] for character in content], np.int64)
        step = options.length - 1
        starts = np.arange(0, len(numbers) - step, step)
        if not len(starts):
            raise DataError(
                f"{path}: {len(numbers)} characters for {split} are fewer than --text-length="
                f"{options.length}"
            )
        pieces = numbers[starts[:, None] + np.arange(options.length)]
        order = shuffled(len(pieces), options.seed) if split == "train" else np.arange(len(pieces))
        nothing = np.zeros(len(pieces), np.int64)
        splits[split] = pick(order, str, pieces.__getitem__, nothing)
    name = options.name or path.resolve().stem
    # A line of the vocabulary file is a token: characters that end lines are escaped.
    tokens = tuple(character.encode("unicode_escape").decode() for character in characters)
    return Source(name, TEXT, 1, splits, (), NOTHING, len(characters) + 1, (_PADDING, *tokens))


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as UTF-8 ({error})") from error
