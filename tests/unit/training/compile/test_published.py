"""No bound of a compiled step lies above a time that somebody published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import published

PAGE = Path(__file__).parents[4] / "docs" / "sizing.md"
ROWS = published.compare(published.facts())


def test_there_are_published_times_with_their_sources() -> None:
    families = [row["tpu"].partition("-")[0] for row in published.rows()]
    assert len([family for family in families if family in ("v3", "v5p", "v6e")]) >= 8
    assert {"v2", "v3", "v5p", "v6e"} <= set(families)
    assert all(row.source.startswith("https://") for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_bound_is_above_a_published_time(row: published.Published) -> None:
    assert 0 < row.bound <= row.published


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_step_takes_twice_the_compilers_estimate(row: published.Published) -> None:
    """It may be higher: where their attention is a kernel, our scores go through memory."""
    assert 1 / 3 <= row.published / row.estimate <= 2


def test_the_page_has_the_table() -> None:
    assert published.markdown() in PAGE.read_text(encoding="utf-8")
