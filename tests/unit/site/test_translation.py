"""The Chinese pages keep step with the English ones."""

from __future__ import annotations

import posixpath
import re

import pytest

from .conftest import READMES, code_blocks, headings, prose, text

TRANSLATED = {
    "README.md": "README.zh-CN.md",
    "docs/try-locally.md": "docs/zh/try-locally.md",
    "docs/first-tpu.md": "docs/zh/first-tpu.md",
    "docs/cost.md": "docs/zh/cost.md",
}
PAIRS = pytest.mark.parametrize(("english", "chinese"), TRANSLATED.items())
_ENGLISH = {chinese: english for english, chinese in TRANSLATED.items()}


def commands(page: str) -> list[str]:
    """What stands between backticks, of tables and prose, in any order."""
    return sorted(set(re.findall(r"`([^`]+)`", prose(page))))


def links(page: str) -> list[str]:
    """The pages, pictures and addresses that a page leads to, as the English page names them."""
    found = set()
    for path in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)| src(?:set)?=\"([^\"]+)\"", prose(page)):
        link = path[0] or path[1]
        if not re.match(r"[a-z]+:", link):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            link = _ENGLISH.get(target, target)
        found.add(link.replace("docs/zh/architecture", "docs/architecture"))
    return sorted(found - set(READMES))


def rows(page: str) -> list[int]:
    """The number of cells of each row of each table."""
    return [len(line.split(" | ")) for line in prose(page).splitlines() if line.startswith("|")]


@PAIRS
def test_both_have_the_same_headings_at_the_same_levels(english: str, chinese: str) -> None:
    assert [level for level, _ in headings(chinese)] == [level for level, _ in headings(english)]
    titles = [title for _, title in headings(chinese) if title != "tpu-stack"]
    assert all(re.search(r"[\u4e00-\u9fff]", title) for title in titles)


@PAIRS
def test_both_have_the_same_blocks_of_commands(english: str, chinese: str) -> None:
    assert code_blocks(chinese) == code_blocks(english)


@PAIRS
def test_both_name_the_same_commands_settings_and_folders(english: str, chinese: str) -> None:
    assert commands(chinese) == commands(english)


@PAIRS
def test_both_have_the_same_links_and_tables(english: str, chinese: str) -> None:
    assert links(chinese) == links(english)
    assert rows(chinese) == rows(english)


def test_the_readmes_lead_to_each_other() -> None:
    assert "](README.zh-CN.md)" in text("README.md")
    assert "](README.md)" in text("README.zh-CN.md")


@pytest.mark.parametrize("page", READMES)
def test_the_readme_is_short_and_its_first_screen_has_status_cost_and_picture(page: str) -> None:
    lines = text(page).splitlines()
    assert len(lines) <= 120
    first = "\n".join(lines[: next(n for n, line in enumerate(lines) if line.startswith("## "))])
    assert "(docs/verification.md)" in first
    assert "1.10" in first
    assert 'media="(max-width: 600px)"' in first


def test_the_readme_has_about_four_hundred_words_of_prose() -> None:
    prose_of = re.sub(r"<[^>]+>|\]\([^)]+\)|[|#>*`\[\]-]", " ", prose("README.md"))
    assert len(prose_of.split()) <= 450


def test_the_readme_shows_the_commands_of_the_first_tpu() -> None:
    """All but the output, which is there to look around."""
    page = "".join(block for block in code_blocks("docs/first-tpu.md") if "night" not in block)
    said = [line for line in page.splitlines() if line and "stack output" not in line]
    assert sorted(said) == sorted(code_blocks("README.md")[1].splitlines())
