"""`make site`: every page is on the site, and the site needs no other host."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from docs_site import HOME, repository

from tests.browser import PICTURES, browsing, find_browser
from tests.serving import in_thread

from .conftest import PAGES, READMES, REPOSITORY, fenced, text

# What a search must find among its first three pages.
QUESTIONS = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text(encoding="utf-8"))
FIRST = 3
# Outputs and messages wrap on the page; commands and files don't.
WRAPPED = ("text", "console")


class _MenuLoader(yaml.SafeLoader):
    """Reads mkdocs.yml, of which one setting names a function."""


_MenuLoader.add_multi_constructor("", lambda loader, suffix, node: None)
MENU = yaml.load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), _MenuLoader)["nav"]


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
    special = {HOME: "index.html", "README.md": "README.html"}
    return special.get(page, page.replace("README.md", "index.html")).replace(".md", ".html")


def menu(items: list[Any]) -> list[str]:
    """The pages of a part of the menu, in their order."""
    found: list[str] = []
    for item in items:
        for entry in item.values() if isinstance(item, dict) else [item]:
            found += menu(entry) if isinstance(entry, list) else [entry]
    return found


@pytest.mark.slow
def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    searched = {entry["location"].partition("#")[0] for entry in index["docs"]}
    for page in PAGES:
        assert (site / address(page)).is_file(), page
        assert (address(page) in searched) == (page not in READMES), page


def test_the_menu_has_every_page_of_docs_and_the_gallery_once_and_no_other() -> None:
    ours = {page for page in PAGES if page.startswith("docs/") and "/decisions/" not in page}
    assert sorted(menu(MENU)) == sorted({*ours, "examples/README.md"})
    assert len([page for page in ours if "/zh/" not in page]) <= 23


@pytest.mark.slow
def test_sources_that_pages_link_to_are_shown_and_stay_out_of_the_search(site: Path) -> None:
    page = site / "agent" / "tpu_agent" / "limits.py.html"
    assert "timeToLive" in page.read_text("utf-8")
    assert "limits.py.html" not in (site / "search" / "search_index.json").read_text("utf-8")


@pytest.mark.slow
def test_home_shows_the_five_steps_on_any_screen(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    assert 'src="docs/architecture.svg"' in home
    assert 'srcset="docs/architecture-narrow.svg"' in home
    for picture in ("architecture.svg", "architecture-narrow.svg"):
        assert "prefers-color-scheme: dark" in (site / "docs" / picture).read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_has_its_language_an_icon_and_its_neighbours(site: Path) -> None:
    chinese = (site / "docs" / "zh" / "first-tpu.html").read_text(encoding="utf-8")
    english = (site / "docs" / "first-tpu.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN"' in chinese
    assert '<html lang="en"' in english
    assert 'rel="icon" href="favicon.svg"' in english
    assert 'class="md-footer__link md-footer__link--prev"' in english
    assert 'class="md-footer__link md-footer__link--next"' in english


@pytest.mark.slow
def test_no_page_fetches_anything_from_another_host(site: Path) -> None:
    fetching = (
        r"<(?:script|img|iframe|source)[^>]*\s(?:src|srcset)=\"?https?:"
        r"|<link[^>]*(?:stylesheet|icon)[^>]*https?:"
    )
    for page in site.rglob("*.html"):
        assert not re.search(fetching, page.read_text(encoding="utf-8")), page


SEEN = (
    HOME,
    "README.md",
    "docs/try-locally.md",
    "docs/first-tpu.md",
    "docs/zh/first-tpu.md",
    "examples/README.md",
    "docs/cost.md",
    "docs/tpu-types.md",
    "docs/settings.md",
    "docs/verification.md",
)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder; the address of it."""
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    with in_thread(files) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    """The site's address."""
    with serving(site) as address:
        yield address


_WRAPPED = ", ".join(f".language-{language} code" for language in WRAPPED)
_SCROLLED = f"""[...document.querySelectorAll("{_WRAPPED}")]
  .filter((code) => code.scrollWidth > code.clientWidth)
  .map((code) => code.textContent.slice(0, 40))"""


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
@pytest.mark.xdist_group("browser")
@pytest.mark.server
def test_pages_are_legible_on_any_screen_and_ask_no_other_host(url: str) -> None:
    """Each picture stays in build/pictures, for people to look at."""
    wrong = []
    with browsing() as browser:
        for page, width, dark in itertools.product(SEEN, (1280, 390), (False, True)):
            browser.open(f"{url}/{address(page)}", width=width, dark=dark)
            browser.wait("document.fonts.status === 'loaded'")
            kind = f"{width}-{'dark' if dark else 'light'}"
            name = address(page).removesuffix(".html").replace("/", "-")
            browser.picture(PICTURES / f"{name}-{kind}.png")
            wrong += [(page, kind, *faint) for faint in browser.faint()]
            if browser.value("document.documentElement.scrollWidth") > width:
                wrong.append((page, kind, "is wider than the screen"))
            wrong += [(page, kind, "doesn't wrap", text) for text in browser.value(_SCROLLED)]
        assert {
            asked for asked in browser.requests if not asked.startswith((url, "data:"))
        } == set()
        assert browser.errors == []
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in PAGES if page in menu(MENU)])
def test_the_code_of_a_page_fits_it(page: str) -> None:
    blocks = [block for language, block in fenced(page) if language not in WRAPPED]
    assert [line for block in blocks for line in block.splitlines() if len(line) > 78] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_table_has_a_heading(page: str) -> None:
    lines = ["", *text(page).splitlines(), ""]
    each = zip(lines, lines[1:], lines[2:], strict=False)
    firsts = [(line, below) for above, line, below in each if line[:1] == "|" != above[:1]]
    assert [line for line, below in firsts if not below.startswith("|---")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("remote", "page"),
    [
        ("https://github.com/ada/tpu-stack.git", "https://github.com/ada/tpu-stack"),
        (
            "git@gitlab.example.com:team/ml/tpu-stack.git",
            "https://gitlab.example.com/team/ml/tpu-stack",
        ),
        ("ssh://git@github.com/ada/tpu-stack", "https://github.com/ada/tpu-stack"),
        ("/home/ada/tpu-stack", None),
        ("", None),
    ],
)
def test_the_repository_is_where_the_clone_came_from(remote: str, page: str | None) -> None:
    assert repository(remote) == page


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, list[str]]:
    """The pages that the site's own search finds for each question, best first."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("the site's search runs in node")
    [worker] = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    questions = [question for asked in QUESTIONS.values() for question in asked]
    done = subprocess.run(
        [node, Path(__file__).with_name("search.js"), worker, site / "search/search_index.json"],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_each_page_that_helps_is_asked_for() -> None:
    helps = ("Tutorials", "How-to", "中文")
    assert set(menu([part for part in MENU if part.keys() & helps])) <= QUESTIONS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("page", QUESTIONS)
def test_a_search_finds_the_page_among_the_first_three(
    page: str, found: dict[str, list[str]]
) -> None:
    missed = {q: found[q][:FIRST] for q in QUESTIONS[page] if address(page) not in found[q][:FIRST]}
    assert missed == {}


@pytest.mark.slow
def test_a_language_model_finds_each_page_of_the_menu_in_one_file(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# tpu-stack\n\n> ")
    listed = re.findall(r"^- \[.+\]\((\S+\.html)\)", text, re.M)
    pages = [one for part in MENU for one in part.values()]
    flat = [page for one in pages for page in ([one] if isinstance(one, str) else one)]
    assert listed == [address(page) for page in flat]
    assert all((site / page).exists() for page in listed)
    assert "(docs/cost.html): You pay for a TPU and its VM until you delete them, whether" in text
