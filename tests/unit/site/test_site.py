"""`make site`: every page is on the site, and the site needs no other host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PAGES, REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def address(page: str) -> str:
    return re.sub(r"(README)?\.md$", lambda end: "index.html" if end[1] else ".html", page)


def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    searched = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in PAGES:
        assert (site / address(page)).is_file(), page
        assert address(page) in searched, page


def test_sources_that_pages_link_to_are_shown_and_stay_out_of_the_search(site: Path) -> None:
    page = site / "agent" / "tpu_agent" / "limits.py.html"
    assert "timeToLive" in page.read_text("utf-8")
    assert "limits.py.html" not in (site / "search" / "search_index.json").read_text("utf-8")


def test_the_first_page_shows_the_architecture(site: Path) -> None:
    assert 'src="docs/architecture.svg"' in (site / "index.html").read_text(encoding="utf-8")
    picture = (site / "docs" / "architecture.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in picture


def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    fetching = (
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?https?:|<link[^>]*stylesheet[^>]*https?:"
    )
    for page in site.rglob("*.html"):
        assert not re.search(fetching, page.read_text(encoding="utf-8")), page
