"""The Chinese README keeps step with the English one."""

from __future__ import annotations

import re

from .conftest import code_blocks, headings, prose, text

ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
OTHER = {ENGLISH: CHINESE, CHINESE: ENGLISH}


def commands(page: str) -> list[str]:
    """What stands between backticks, of tables and prose, in any order."""
    return sorted(set(re.findall(r"`([^`]+)`", prose(page))))


def links(page: str) -> set[str]:
    return set(re.findall(r"\]\(([^)]+)\)", prose(page)))


def rows(page: str) -> list[int]:
    """The number of cells of each row of each table."""
    return [len(line.split(" | ")) for line in prose(page).splitlines() if line.startswith("|")]


def test_both_have_the_same_headings_at_the_same_levels() -> None:
    english, chinese = headings(ENGLISH), headings(CHINESE)
    assert [level for level, _ in chinese] == [level for level, _ in english]
    assert all(re.search(r"[\u4e00-\u9fff]", title) for _, title in chinese[1:])


def test_both_have_the_same_blocks_of_commands() -> None:
    assert code_blocks(CHINESE) == code_blocks(ENGLISH)


def test_both_name_the_same_commands_settings_and_folders() -> None:
    assert commands(CHINESE) == commands(ENGLISH)


def test_both_have_the_same_links_and_tables() -> None:
    for page in OTHER:
        assert OTHER[page] in links(page)
    assert links(CHINESE) - {ENGLISH} == links(ENGLISH) - {CHINESE}
    assert rows(CHINESE) == rows(ENGLISH)


def test_the_readme_is_short_and_leads_with_a_picture() -> None:
    for page in OTHER:
        lines = text(page).splitlines()
        assert len(lines) <= 120
        picture = next(n for n, line in enumerate(lines) if line.startswith("!["))
        assert picture < next(n for n, line in enumerate(lines) if line.startswith("## "))
