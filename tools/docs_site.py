"""MkDocs hooks: the site has the repository's own paths, so that links work there and on GitHub.

MkDocs reads one folder, and pages also stand next to what they describe. So each page gets the path
that it has in the repository, and each source file or folder that a page links to becomes a page.
"""

from __future__ import annotations

import posixpath
import re
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
    "infra/README.md",
    "localcloud/README.md",
    "tools/README.md",
    "training/README.md",
    "training/docs/*.md",
    "training/recipes/*.md",
)
PICTURES = ("docs/*.svg", "docs/*.png", "training/recipes/*.png")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml", ".go": "go"}


def pages() -> list[str]:
    """List the pages of the site by their paths in the repository."""
    return sorted(_found(PAGES))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace what MkDocs found in docs/ by all pages, pictures and the sources they link to."""
    own = Path(config.docs_dir)
    theirs = [file for file in files if own not in Path(file.abs_src_path or "").parents]
    shown = (*pages(), *sorted(_found(PICTURES)))
    ours = [File.generated(config, path, abs_src_path=str(ROOT / path)) for path in shown]
    sources = [
        File.generated(
            config,
            f"{path}.md",
            content=_source_page(path),
            inclusion=InclusionLevel.NOT_IN_NAV,
        )
        for path in sorted(linked_sources())
    ]
    return Files([*theirs, *ours, *sources])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to sources at the pages that show them."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return f"{link[1].rstrip('/')}.md" if f"{target}.md" in files.src_uris else link[1]

    return LINK.sub(shown, markdown)


def linked_sources() -> set[str]:
    """List the files and folders that pages link to and that are neither pages nor pictures."""
    known = _found((*PAGES, *PICTURES))
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
