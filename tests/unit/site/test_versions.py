"""`make site VERSION=…`: releases lie next to each other, and old ones lead to the latest."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.browser import PICTURES, browsing, find_browser

from .conftest import REPOSITORY
from .test_site import serving

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("versions")]
PAGE = "docs/cost.html"
LINK = re.compile(r'(?:href|src)="?([^"#? >]+)')
RELEASE = yaml.safe_load((REPOSITORY / ".github/workflows/release.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both releases in a folder, as the workflow's bundle brings them to another repository."""
    folder = tmp_path_factory.mktemp("versions")
    names = {"GIT_COMMITTER_NAME": "ada", "GIT_COMMITTER_EMAIL": "ada@example.com"}
    author = {name.replace("COMMITTER", "AUTHOR"): value for name, value in names.items()}
    told = {**os.environ, **names, **author, "GIT_DIR": str(folder / "clone" / ".git")}

    def run(*command: str, **more: str) -> None:
        subprocess.run(command, cwd=REPOSITORY, env={**told, **more}, check=True)

    run("git", "init", "--quiet", str(folder / "clone"))
    run("git", "commit", "--quiet", "--allow-empty", "--message", "one")
    (building,) = [step for step in RELEASE["jobs"]["site"]["steps"] if "env" in step]
    # The last one corrects an older release.
    for tag in ("v0.2.0", "v0.1.1"):
        run("git", "tag", tag)
        run("bash", "-e", "-c", building["run"], TAG=tag)
    run("git", "bundle", "create", "--quiet", str(folder / "site.bundle"), "gh-pages")
    shown = ["git", "clone", "--quiet", "--branch", "gh-pages", "site.bundle", "site"]
    subprocess.run(shown, cwd=folder, check=True)
    return folder / "site"


def test_each_release_has_its_folder_and_latest_is_the_newest(sites: Path) -> None:
    versions = json.loads((sites / "versions.json").read_text(encoding="utf-8"))
    told = [(one["version"], one["aliases"]) for one in versions]
    assert told == [("0.2", ["latest"]), ("0.1", [])]
    assert (sites / "latest").resolve() == sites / "0.2"
    assert 'href="latest/"' in (sites / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_every_link_of_a_version_leads_to_a_file(sites: Path, version: str) -> None:
    dead = set()
    pages = [*(sites / version).glob("*.html"), *(sites / version / "docs").rglob("*.html")]
    for page in pages:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:|/", link) and not (page.parent / link).exists():
                dead.add((page.name, link))
    assert len(pages) > 20
    assert dead == set()


@pytest.fixture
def url(sites: Path) -> Iterator[str]:
    with serving(sites) as address:
        yield address


@pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")
@pytest.mark.server
def test_a_page_lists_the_versions_and_an_old_one_says_so(url: str) -> None:
    """Each picture stays in build/pictures, for people to look at."""
    banner = "document.querySelector('[data-md-component=outdated]')"
    with browsing() as browser:
        for version, width in (("0.1", 1280), ("0.1", 390), ("0.2", 1280), ("latest", 1280)):
            browser.open(f"{url}/{version}/{PAGE}", width=width, dark=False)
            browser.wait("document.querySelector('.md-version__list') !== null")
            browser.wait("document.fonts.status === 'loaded'")
            listed = "[...document.querySelectorAll('.md-version__link')].map(a => a.textContent)"
            assert [text.strip() for text in browser.value(listed)] == ["0.2", "0.1"]
            old = version == "0.1"
            browser.wait(f"{banner}.hidden !== {str(old).lower()}")
            if old:
                words = " ".join(browser.value(f"{banner}.innerText").split())
                assert words.startswith("This is the documentation of version 0.1, which is not")
                assert (
                    browser.value(f"{banner}.querySelector('a').href") == f"{url}/latest/index.html"
                )
            browser.picture(PICTURES / f"version-{version}-{width}.png")
            assert browser.faint() == []
            assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.errors == []
