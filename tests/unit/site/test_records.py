"""Decision records, and what CONTRIBUTING.md names, are as their readers expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import REPOSITORY, headings, prose, text

FOLDER = REPOSITORY / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("0*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_number_its_four_parts_and_a_place_in_the_list(
    record: Path,
) -> None:
    (level, title), *parts = headings(f"docs/decisions/{record.name}")
    assert (level, title.partition(".")[0]) == (1, str(int(record.name[:4])))
    assert parts == [(2, part) for part in ("Context", "Decision", "Consequences", "Alternatives")]
    assert f"({record.name})" in text("docs/decisions/README.md")


def test_records_are_numbered_without_gaps() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_every_path_that_contributing_names_exists() -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.*-]*)`", prose("CONTRIBUTING.md"))
    assert len(named) > 30
    missing = [path for path in named if not any(REPOSITORY.glob(path.rstrip("/")))]
    assert missing == []
