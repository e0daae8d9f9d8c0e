"""Read words with a class each, as the CoNLL tasks write them.

A line has a word and, as its last column, the class; an empty line ends a sentence. The words of
the training sentences are the tokens, in lower case, so that each has one class.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import TEXT, Options, Source, orders, pick
from tpu_training.errors import DataError
from tpu_training.models.spec import IGNORED, TOKEN_CLASSES

_ENDINGS = (".conll", ".bio")
_SPECIAL = ("[PAD]", "[UNK]")
_MOST_WORDS = 50_000

Sentence = list[tuple[str, str]]


def matches(path: Path) -> bool:
    """Return whether `path` is such a file or a folder with train.conll."""
    if path.is_file():
        return path.suffix.lower() in _ENDINGS
    return (path / f"train{_ENDINGS[0]}").is_file()


def load(path: Path, options: Options) -> Source:
    """Read FILE.conll and split its sentences, or FOLDER/train.conll and FOLDER/test.conll."""
    files = {"train": path}
    if path.is_dir():
        files = {split: path / f"{split}{_ENDINGS[0]}" for split in ("train", "test")}
    read = {split: _sentences(file) for split, file in files.items()}
    counts = Counter(word for sentence in read["train"] for word, _ in sentence)
    words = (*_SPECIAL, *(word for word, _ in counts.most_common(_MOST_WORDS)))
    names = sorted({name for sentences in read.values() for s in sentences for _, name in s})
    ids = {word: number for number, word in enumerate(words)}
    classes = {name: number for number, name in enumerate(names)}
    stored = {
        split: _arrays(sentences, ids, classes, options.length) for split, sentences in read.items()
    }
    splits = {}
    sizes = {split: len(sentences) for split, sentences in read.items()}
    for split, (source, order) in orders(sizes, options, str(path)).items():
        features, targets = stored[source]
        splits[split] = pick(order, str, features.__getitem__, targets)
    name = options.name or path.resolve().stem
    return Source(name, TEXT, len(names), splits, tuple(names), TOKEN_CLASSES, len(words), words)


def _sentences(path: Path) -> list[Sentence]:
    sentences: list[Sentence] = [[]]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as UTF-8 ({error})") from error
    for number, line in enumerate(lines, 1):
        columns = line.split()
        if not columns:
            sentences.append([])
        elif len(columns) == 1:
            raise DataError(f"{path} line {number}: {line!r} has no class; expected WORD … CLASS")
        else:
            sentences[-1].append((columns[0].lower(), columns[-1]))
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise DataError(f"{path}: contains no sentences")
    return found


def _arrays(
    sentences: list[Sentence], ids: dict[str, int], classes: dict[str, int], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the words' ids and classes, cut or padded to `length`."""
    features = np.zeros((len(sentences), length), np.int64)
    targets = np.full((len(sentences), length), IGNORED, np.int64)
    for row, sentence in enumerate(sentences):
        for place, (word, name) in enumerate(sentence[:length]):
            features[row, place] = ids.get(word, ids[_SPECIAL[1]])
            targets[row, place] = classes[name]
    return features, targets
