"""Links between pages lead somewhere, and tables are whole, also on GitHub: no strict build."""

from __future__ import annotations

import posixpath
import re
from collections import Counter

import pytest

from .conftest import PAGES, REPOSITORY, headings, prose

LINK = re.compile(r"(?:\]\(| src=\"| srcset=\")([^)\"\s]+)[)\"]")


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of `page`, and those that the page names."""
    seen: Counter[str] = Counter()
    found = set()
    for _, title in headings(page):
        if named := re.search(r" \{#(\S+)\}$", title):
            found.add(named[1])
            continue
        # https://github.com/gjtorikian/html-pipeline: lower case, no punctuation, hyphens.
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_and_anchor_of_a_page_exists(page: str) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        exists = (REPOSITORY / target).exists()
        if not exists or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_readme_leads_to_every_page_in_three_clicks() -> None:
    reached, border = {"README.md"}, {"README.md"}
    for _ in range(3):
        border = {
            posixpath.normpath(posixpath.join(posixpath.dirname(page), link.partition("#")[0]))
            for page in border
            for link in LINK.findall(prose(page))
        } & set(PAGES)
        reached |= border
    assert set(PAGES) - reached == set()


@pytest.mark.parametrize("page", PAGES)
def test_each_table_of_a_page_has_a_heading_so_no_empty_line_cuts_it(page: str) -> None:
    lines = ["", *prose(page).splitlines(), "", ""]
    firsts = [
        (line, lines[number + 1])
        for number, line in enumerate(lines)
        if line.startswith("|") and not lines[number - 1].startswith("|")
    ]
    assert [first for first, second in firsts if not re.match(r"\|[ :]*-", second)] == []
