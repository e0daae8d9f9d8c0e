"""Texts as token ids: WordPiece as in BERT, a text's characters, and words with a class each.

WordPiece is greedy, longest piece first: https://arxiv.org/abs/1609.08144 (section 4.1).
"""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tpu_training.data import source as sources
from tpu_training.data.source import Options, Source
from tpu_training.errors import DataError
from tpu_training.models import spec as specs

PADDING, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_SPECIAL = (PADDING, UNKNOWN, START, END)
# Words, single ideographs, single punctuation marks.
_WORD = re.compile(r"[\u3400-\u9fff]|(?:(?![\u3400-\u9fff])[^\W_])+|[^\w\s]|_")
_INSIDE = "##"
_LONGEST_WORD = 100
_LONGEST_PIECE = 16
# Rarer words add little to the counts and much to the time.
_MOST_WORDS = 50_000
_ROUNDS = 12


class Tokenizer:
    """Turns texts into token ids of one length."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """Assign ids to the tokens in order. Raises ValueError if a special token is missing.

        Keep upper case if the vocabulary has upper-case letters outside the special tokens.
        """
        self._ids = {token: number for number, token in enumerate(vocabulary)}
        if missing := [token for token in _SPECIAL if token not in self._ids]:
            raise ValueError(f"has no token {', '.join(missing)}")
        if self._ids[PADDING]:
            raise ValueError(f"has {PADDING} at {self._ids[PADDING]}; it must be the first")
        self.size = len(vocabulary)
        self._cased = any(t != t.lower() for t in vocabulary if not t.startswith("["))

    def encode(self, text: str, length: int) -> list[int]:
        """Return start, the words' pieces and end, cut or padded to `length`."""
        # Words beyond `length` are not even looked up, so a long text costs no more than its cut.
        ids = [self._ids[START]]
        for word in words(text, self._cased):
            if len(ids) >= length:
                break
            ids += self._pieces(word)
        ids = [*ids[: length - 1], self._ids[END]]
        return ids + [0] * (length - len(ids))

    def _pieces(self, word: str) -> list[int]:
        pieces: list[int] = []
        start = 0
        while start < len(word) <= _LONGEST_WORD:
            prefix = _INSIDE if start else ""
            for end in range(len(word), start, -1):
                if (piece := self._ids.get(prefix + word[start:end])) is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return [self._ids[UNKNOWN]]
        return pieces or [self._ids[UNKNOWN]]


def words(text: str, cased: bool) -> list[str]:
    """Split into words and punctuation; unless `cased`, in lower case and without accents."""
    if not cased:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return _WORD.findall(text)


def learn_vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """Choose up to `size` tokens: the special ones, all characters, and the most useful pieces.

    A piece is useful if it occurs often outside longer chosen pieces. A binary search finds the
    threshold that leaves about `size` tokens.
    """
    # The program that made BERT's vocabulary isn't public; any that covers the texts will do.
    counts = Counter(word for text in texts for word in words(text, cased=False))
    common = counts.most_common(_MOST_WORDS)
    characters = _characters(counts)
    by_length = _pieces_by_length(common)
    low, high = 1, max(counts.values(), default=1)
    pieces: list[str] = []
    for _ in range(_ROUNDS):
        least = (low + high) // 2
        found = _useful(by_length, least)
        if len(found) + len(characters) + len(_SPECIAL) > size:
            low = least + 1
        else:
            pieces, high = found, least
        if low >= high:
            break
    chosen = dict.fromkeys([*characters, *pieces])
    return [*_SPECIAL, *chosen][: max(size, len(_SPECIAL))]


def _characters(counts: Counter[str]) -> list[str]:
    """Return every character, both word-initial and word-internal, most frequent first."""
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for position, character in enumerate(word):
            found[(_INSIDE if position else "") + character] += count
    return [piece for piece, _ in found.most_common()]


def _pieces_by_length(common: Sequence[tuple[str, int]]) -> list[Counter[str]]:
    """Count each piece of 2 to 16 characters, longest first."""
    by_length: list[Counter[str]] = [Counter() for _ in range(_LONGEST_PIECE + 1)]
    for word, count in common:
        for start in range(len(word)):
            prefix = _INSIDE if start else ""
            for end in range(start + 2, min(len(word), start + _LONGEST_PIECE) + 1):
                by_length[end - start][prefix + word[start:end]] += count
    return by_length[:1:-1]


def _useful(by_length: Sequence[Counter[str]], least: int) -> list[str]:
    """Return the pieces that occur `least` times outside longer ones, most frequent first."""
    covered: Counter[str] = Counter()
    chosen: list[tuple[int, str]] = []
    for pieces in by_length:
        for piece, count in pieces.items():
            left = count - covered[piece]
            if left < least:
                continue
            chosen.append((left, piece))
            start = len(_INSIDE) if piece.startswith(_INSIDE) else 0
            for end in range(start + 2, len(piece)):
                covered[piece[:end]] += left
    return [piece for _, piece in sorted(chosen, key=lambda found: (-found[0], found[1]))]


# The text is cut into pieces that overlap by one character, so that each is predicted once.

# Lines such as those of text classification: a word or number, a tab, a text.
_LABELLED, _LOOKED_AT = re.compile(r"\S{1,40}\t[^\t]+"), 20

logger = logging.getLogger(__name__)


def is_characters(path: Path) -> bool:
    """Return whether `path` is a .txt file or a folder with a train.txt."""
    return path.suffix.lower() == ".txt" if path.is_file() else (path / "train.txt").is_file()


def load_characters(path: Path, options: Options) -> Source:
    """Read FILE.txt, whose last part is for testing, or FOLDER/train.txt and FOLDER/test.txt."""
    if path.is_file():
        text = _read_text(path)
        kept = len(text) - round(len(text) * options.test_fraction)
        texts = {"train": text[:kept], "test": text[kept:]}
    else:
        texts = {split: _read_text(path / f"{split}.txt") for split in ("train", "test")}
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
        count = len(pieces)
        order = sources.shuffled(count, options.seed) if split == "train" else np.arange(count)
        nothing = np.zeros(count, np.int64)
        splits[split] = sources.pick(order, str, pieces.__getitem__, nothing)
    name = options.name or path.resolve().stem
    # A line of the vocabulary file is a token: characters that end lines are escaped.
    tokens = tuple(character.encode("unicode_escape").decode() for character in characters)
    return Source(
        name, sources.TEXT, 1, splits, (), specs.NOTHING, len(characters) + 1, (PADDING, *tokens)
    )


def _read_text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: can't be read as UTF-8 ({error})") from error


# A line has a word and, as its last column, the class; an empty line ends a sentence. The words of
# the training sentences are the tokens, in lower case, so that each has one class.

_ENDINGS = (".conll", ".bio")

Sentence = list[tuple[str, str]]


def is_words(path: Path) -> bool:
    """Return whether `path` is such a file or a folder with train.conll."""
    if path.is_file():
        return path.suffix.lower() in _ENDINGS
    return (path / f"train{_ENDINGS[0]}").is_file()


def load_words(path: Path, options: Options) -> Source:
    """Read FILE.conll and split its sentences, or FOLDER/train.conll and FOLDER/test.conll."""
    files = {"train": path}
    if path.is_dir():
        files = {split: path / f"{split}{_ENDINGS[0]}" for split in ("train", "test")}
    read = {split: _sentences(file) for split, file in files.items()}
    counts = Counter(word for sentence in read["train"] for word, _ in sentence)
    words = (PADDING, UNKNOWN, *(word for word, _ in counts.most_common(_MOST_WORDS)))
    names = sorted({name for sentences in read.values() for s in sentences for _, name in s})
    ids = {word: number for number, word in enumerate(words)}
    classes = {name: number for number, name in enumerate(names)}
    stored = {
        split: _arrays(sentences, ids, classes, options.length) for split, sentences in read.items()
    }
    splits = {}
    sizes = {split: len(sentences) for split, sentences in read.items()}
    for split, (source, order) in sources.orders(sizes, options, str(path)).items():
        features, targets = stored[source]
        splits[split] = sources.pick(order, str, features.__getitem__, targets)
    name = options.name or path.resolve().stem
    return Source(
        name, sources.TEXT, len(names), splits, tuple(names), specs.TOKEN_CLASSES, len(words), words
    )


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
    targets = np.full((len(sentences), length), specs.IGNORED, np.int64)
    for row, sentence in enumerate(sentences):
        for place, (word, name) in enumerate(sentence[:length]):
            features[row, place] = ids.get(word, ids[UNKNOWN])
            targets[row, place] = classes[name]
    return features, targets
