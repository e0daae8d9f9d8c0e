"""MkDocs hooks: the site has the repository's own paths, so that links work there and on GitHub.

MkDocs reads one folder, and pages also stand next to what they describe. So each page gets the path
that it has in the repository, and each source file or folder that a page links to becomes a page.
Home is docs/index.md. Links to the repository and to edit a page lead to where this clone is from.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files, InclusionLevel

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "*.md",
    "docs/**/*.md",
    "agent/README.md",
    "core/README.md",
    "examples/README.md",
    "infra/README.md",
    "localcloud/README.md",
    "tools/README.md",
    "training/README.md",
    "training/recipes/*.md",
)
ASSETS = ("docs/**/*.svg", "docs/*.png", "docs/*.css", "training/recipes/*.png")
HOME = "docs/index.md"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_PICTURE = re.compile(r'(?<= src=")([^":]+)|(?<= srcset=")([^":]+)')
_REMOTE = re.compile(r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./-]+?)(?:\.git)?/?")
# How much more a page counts in the search: what people do, before what they look up.
_BOOSTS = {"Tutorials": 3.0, "How-to": 3.0, "中文": 3.0, "Explanation": 2.0}
_OUTSIDE = 0.2
# The first sentence of a paragraph of text.
_SENTENCE = re.compile(r"(?<=\n\n)[A-Z](?:[^|:。\n]|\n(?!\n))+?\.(?=\s)")
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".go": "go"}


def pages() -> list[str]:
    """List the pages of the site by their paths in the repository."""
    return sorted(_found(PAGES))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Link to the repository, if this clone came from a forge, and show which version it is of."""
    if number := os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike", "default": "latest", "number": number}
    asked = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if address := repository(done.stdout.strip()):
        config.repo_url, config.repo_name = address, address.partition("//")[2]
        config.edit_uri = "-/edit/main/" if "gitlab" in address else "edit/main/"
    return config


def repository(remote: str) -> str | None:
    """Return the page of a remote repository; None for a folder."""
    found = _REMOTE.fullmatch(remote)
    return f"https://{found[1]}/{found[2]}" if found else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what MkDocs found in docs/ by all pages, pictures and the sources they link to."""
    own = Path(config.docs_dir)
    theirs = [file for file in files if own not in Path(file.abs_src_path or "").parents]
    site = (str(ROOT), config.site_dir, config.use_directory_urls)
    home = File(HOME, *site, dest_uri="index.html")
    # Elsewhere README.md is the first page of a folder; here it is one that GitHub shows.
    readme = File("README.md", *site, dest_uri="README.html")
    shown = sorted({*pages(), *_found(ASSETS)} - {HOME, "README.md"})
    ours = [home, readme, *(File(path, *site) for path in shown)]
    sources = [
        File.generated(
            config,
            f"{path}.md",
            content=_source_page(path),
            inclusion=InclusionLevel.NOT_IN_NAV,
        )
        for path in sorted(linked_sources())
    ]
    index = File.generated(config, "llms.txt", content=llms(config.nav or [], config))
    return Files([*theirs, *ours, *sources, index])


def llms(menu: list[dict[str, str | list[str]]], config: MkDocsConfig) -> str:
    """Return the menu with the first sentence of each page, for language models (llmstxt.org)."""
    parts = [f"# {config.site_name}\n\n> {config.site_description}\n"]
    for section in menu:
        for title, pages in section.items():
            listed = [pages] if isinstance(pages, str) else pages
            parts.append("\n".join([f"## {title}\n", *map(_entry, listed), ""]))
    return "\n".join(parts)


def _entry(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    heading, sentence = text.partition("\n")[0], _SENTENCE.search(text)
    about = " ".join(sentence[0].split()) if sentence else ""
    about = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", about)
    path = "index.md" if page == HOME else page.replace("README", "index")
    link = f"[{heading.removeprefix('# ')}]({path.removesuffix('.md')}.html)"
    return f"- {link}: {about}" if about else f"- {link}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to sources at the pages that show them, and pictures at where they are."""
    folder = posixpath.dirname(page.file.src_uri)
    if not page.file.src_uri.startswith("README"):
        page.meta.setdefault("search", {"boost": _boost(page)})
        words: dict[str, list[str]] = config.extra["words"]
        page.meta.setdefault("tags", words.get(page.file.src_uri, []))
    else:
        page.meta["search"] = {"exclude": True}

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"{link[1].rstrip('/')}.md" if f"{target}.md" in files.src_uris else link[1]

    def placed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[0]))
        return posixpath.relpath(target, posixpath.dirname(page.file.dest_uri) or ".")

    return _PICTURE.sub(placed, LINK.sub(shown, markdown))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Tell browsers, screen readers and translators what language the page has."""
    if page.file.src_uri.startswith("docs/zh/") or ".zh-CN." in page.file.src_uri:
        return output.replace('<html lang="en"', '<html lang="zh-CN"', 1)
    return output


def _boost(page: Page) -> float:
    sections = [section.title for section in page.ancestors]
    if not sections:
        return 1.0 if page.file.src_uri == HOME else _OUTSIDE
    return _BOOSTS.get(sections[-1] or "", 1.0)


def linked_sources() -> set[str]:
    """List the files and folders that pages link to and that are neither pages nor pictures."""
    known = _found((*PAGES, *ASSETS))
    targets = {
        posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
        for page in pages()
        for link in LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    }
    return {path for path in targets - known if (ROOT / path).exists()}


def _found(patterns: tuple[str, ...]) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)
    }


def _source_page(path: str) -> str:
    """Show a file with its text, or a folder with the names in it; the search leaves both out."""
    source = ROOT / path
    if source.is_dir():
        names = sorted(item.name for item in source.iterdir() if item.name[0] not in "._")
        text, language = "\n".join(names), ""
    else:
        text, language = source.read_text(encoding="utf-8"), LANGUAGES.get(source.suffix, "")
    header = f"---\nsearch: {{exclude: true}}\n---\n# `{path}`\n\n"
    return f"{header}````{language}\n{text.rstrip()}\n````\n"
