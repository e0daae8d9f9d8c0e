"""WordPiece as in BERT: tokenise texts, and make a vocabulary from the training texts.

Greedy, longest piece first: https://arxiv.org/abs/1609.08144 (section 4.1).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

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
