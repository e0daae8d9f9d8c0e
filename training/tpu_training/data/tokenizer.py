"""Tokenizers: WordPiece as BERT has it, and those of other libraries by their files."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from tpu_training.data.source import PADDING
from tpu_training.errors import require

UNKNOWN, START, END = "[UNK]", "[CLS]", "[SEP]"
_SPECIAL = (PADDING, UNKNOWN, START, END)
# Words, single ideographs, single punctuation marks.
_WORD = re.compile(r"[\u3400-\u9fff]|(?:(?![\u3400-\u9fff])[^\W_])+|[^\w\s]|_")
_INSIDE = "##"
_LONGEST_WORD = 100


class Tokenizer:
    """Turns texts into token ids.

    Attributes:
        size: The number of ids.
        start: The id with which a text begins.
        end: Those with which it ends: one, or none.
        padding: The id that fills an example.
        file: The name and content of what it is made from.
    """

    size: int
    start: int
    end: list[int]
    padding: int = 0
    file: tuple[str, bytes]

    def whole(self, text: str) -> list[int]:
        """Return start, all of the text, and its end."""
        raise NotImplementedError

    def encode(self, text: str, length: int) -> list[int]:
        """Return the same, cut or padded to `length`."""
        ids = self.whole(text)
        if len(ids) > length:
            # A text that is cut ends as others do.
            ids = [*ids[: length - len(self.end)], *self.end]
        return ids + [self.padding] * (length - len(ids))


def vocabulary_file(tokens: Sequence[str]) -> tuple[str, bytes]:
    """Return the name and content of a file with a token on each line."""
    return "vocabulary.txt", ("\n".join(tokens) + "\n").encode()


class WordPiece(Tokenizer):
    """BERT's: greedy, longest piece first (https://arxiv.org/abs/1609.08144, section 4.1)."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """Assign ids to the tokens in order. Raises ValueError if a special token is missing.

        Keep upper case if the vocabulary has upper-case letters outside the special tokens.
        """
        self._ids = {token: number for number, token in enumerate(vocabulary)}
        if missing := [token for token in _SPECIAL if token not in self._ids]:
            raise ValueError(f"has no token {', '.join(missing)}")
        if self._ids[PADDING]:
            place = self._ids[PADDING]
            raise ValueError(f"has {PADDING} at {place}; it must be the first")
        self.size, self.start, self.end = len(vocabulary), self._ids[START], [self._ids[END]]
        self.file = vocabulary_file(vocabulary)
        self._cased = any(t != t.lower() for t in vocabulary if not t.startswith("["))

    def whole(self, text: str) -> list[int]:
        """Return start, the words' pieces and end."""
        pieces = (self._pieces(word) for word in words(text, self._cased))
        return [self.start, *chain.from_iterable(pieces), *self.end]

    def encode(self, text: str, length: int) -> list[int]:
        """Return the same, cut or padded to `length`."""
        # Words beyond `length` are not even looked up, so a long text costs what its cut costs.
        ids = [self.start]
        for word in words(text, self._cased):
            if len(ids) >= length:
                break
            ids += self._pieces(word)
        ids = [*ids[: length - 1], *self.end]
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


# What begins and ends texts, and fills examples, where the file of a tokenizer doesn't say so.
_FIRST = ("<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>", START)
_LAST = ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", END)
_FILL = (PADDING, "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>")


class LibraryTokenizer(Tokenizer):
    """A `tokenizer.json` of Hugging Face's tokenizers, or a model of SentencePiece."""

    def __init__(self, name: str, content: bytes) -> None:
        """Read the `content` of the file called `name`.

        Raises:
            InputError: Its library is not installed.
            ValueError: It is not what its name says, or knows no beginning of a text.
        """
        suffix = Path(name).suffix
        # Under one name, so that it takes that of no other file in a directory.
        self.file = (f"tokenizer{suffix}", content)
        read, library = _READERS[suffix]
        made = require(library, library, "text", f"--vocabulary={name}")
        try:
            self._ids, size, first, last, fill = read(made, content)
        except Exception as error:  # Rust's and C++' errors have no class of their own.
            raise ValueError(f"{library} can't read it ({error})") from error
        begin = last if first is None else first
        if begin is None:
            raise ValueError(f"has no token that begins a text, such as {', '.join(_FIRST)}")
        self.start, self.end = begin, [] if last is None else [last]
        # Its own ids stay, so that they fit the weights of others; those get a row more.
        # Padding that ends texts, too, or is no token of the vocabulary fills nothing.
        one_more = fill is None or fill in (first, last) or fill >= size
        self.padding, self.size = (size, size + 1) if one_more else (fill or 0, size)

    def whole(self, text: str) -> list[int]:
        """Return start, the text's tokens and its end."""
        return [self.start, *self._ids(text), *self.end]


# The ids of a text, how many there are, and what begins and ends a text, and fills an example.
_Read: TypeAlias = tuple[Callable[[str], list[int]], int, int | None, int | None, int | None]


def _read_json(library: Any, content: bytes) -> _Read:
    tokens = library.Tokenizer.from_buffer(content)
    fill = (tokens.padding or {}).get("pad_id")
    tokens.no_padding()
    tokens.no_truncation()

    def known(names: Sequence[str]) -> int | None:
        return next((n for n in map(tokens.token_to_id, names) if n is not None), None)

    # What it puts around a text comes before names.
    around, sample = tokens.encode("").ids, tokens.encode("a").ids
    first, last = (
        around[at] if around and around[at] == sample[at] else known(names)
        for at, names in ((0, _FIRST), (-1, _LAST))
    )
    # Some have gaps in their ids.
    size = max(tokens.get_vocab().values()) + 1
    ids = lambda text: tokens.encode(text, add_special_tokens=False).ids  # noqa: E731
    return ids, size, first, last, known(_FILL) if fill is None else fill


def _read_pieces(library: Any, content: bytes) -> _Read:
    pieces = library.SentencePieceProcessor(model_proto=content)
    special = (pieces.bos_id(), pieces.eos_id(), pieces.pad_id())
    first, last, fill = (None if number < 0 else number for number in special)
    return pieces.encode, pieces.get_piece_size(), first, last, fill


_READERS: Mapping[str, tuple[Callable[[Any, bytes], _Read], str]] = {
    ".json": (_read_json, "tokenizers"),
    ".model": (_read_pieces, "sentencepiece"),
}


def tokenizer_of(name: str, content: bytes) -> Tokenizer:
    """Return the tokenizer in the `content` of a file called `name`. Raises ValueError."""
    if Path(name).suffix in _READERS:
        return LibraryTokenizer(name, content)
    return WordPiece(content.decode().splitlines())


def words(text: str, cased: bool) -> list[str]:
    """Split into words and punctuation; unless `cased`, in lower case and without accents."""
    if not cased:
        text = unicodedata.normalize("NFD", text.lower())
        text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    return _WORD.findall(text)


def learn_vocabulary(texts: Iterable[str], size: int) -> list[str]:
    """Choose up to `size` tokens: the special ones, all characters, and the most frequent words.

    Any other word is spelt by its characters; pieces of words are only in a vocabulary that is
    given, since the program that made BERT's isn't public.
    """
    counts = Counter(word for text in texts for word in words(text, cased=False))
    characters = Counter[str]()
    for word, count in counts.items():
        for position, character in enumerate(word):
            characters[(_INSIDE if position else "") + character] += count
    ranked = [token for token, _ in (*characters.most_common(), *counts.most_common())]
    return list(dict.fromkeys([*_SPECIAL, *ranked]))[: max(size, len(_SPECIAL))]
