"""Check the English that ships: pages, docstrings, messages, comments.

`python tools/prose.py` prints what breaks the rules of `prose.yaml`; with names of pages, it prints
their figures. Vale would do the same, but its packages download the program when they first run.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
RULES = Path(__file__).with_suffix(".yaml")
LONGEST = 35
# What ships to users and maintainers. Google's own words are data, and history stays as it was.
_SHIPPED = re.compile(r"(^Makefile|\.(css|html|ipynb|js|md|py|sh|toml|ya?ml))$")
_OTHERS = ("CHANGELOG.md", "localcloud/localcloud/data/", "tests/", "tools/prose.yaml")
_CODE = (
    "agent",
    "bootstrap",
    "core",
    "infra",
    "localcloud",
    "policy",
    "tools",
    "tpustack",
    "training",
)
_CHINESE = re.compile("[\u4e00-\u9fff]")
# What is no prose on a page: blocks of code, comments, tags, tables.
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.M | re.S)
_NO_PROSE = re.compile(
    r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n|\n(?= {4}))+|^\|[^\n]*$|<!--.*?-->|\A---\n.*?^---$|<[^>\n]+>",
    re.M | re.S,
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|\{[:#][^}]*\}")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )|(?<=\n)(?=#)")
_MARKS = re.compile(
    r"^\s*(?:[-*+]|\d+\.|>|\[[ x]\])\s+|\*\*[^*]+:\*\*|[*_]{1,3}(?=\S)|(?<=\S)[*_]{2,3}"
)
# What a list describes: an option, a setting.
_LABEL = re.compile(r"\A\s*(`[^`]*`|[\w ]{1,30}):\s")
_TICKED = re.compile(r"`[^`]*`")
_END = re.compile(r"(?<=[.!?])[)\"']*\s+(?=[\w\"'(])")
_WORD = re.compile(r"\w[\w'.-]*")
# A text of a program with fewer words is a name, a key or a format.
_FEWEST = 4


@dataclass(frozen=True)
class Sentence:
    """A sentence, with one word for each piece of code in it."""

    text: str

    @property
    def words(self) -> int:
        """How many words it has."""
        return len(_WORD.findall(self.text))

    @property
    def has_colon(self) -> bool:
        """Whether it continues after a colon."""
        return bool(re.search(r"\w\)?: \S", self.text))

    def says(self, people: Iterable[str]) -> bool:
        """Whether a thing says something in it."""
        return any(
            found[1].lower() not in people for found in re.finditer(r"(\w+),? says\b", self.text)
        )


def sentences(text: str) -> list[Sentence]:
    """Return the sentences of running text."""
    # The dots of code, of versions and of `...` end no sentence.
    plain = " ".join(_TICKED.sub("code", text).split())
    parts = (part.strip() for part in _END.split(plain))
    return [Sentence(part) for part in parts if _WORD.search(part)]


def of_page(text: str) -> list[Sentence]:
    """Return the sentences of a page's paragraphs and lists, without headings and Chinese."""
    prose = _LINK.sub(lambda link: link[1] or "", _NO_PROSE.sub("", _FENCE.sub("", text)))
    found = []
    for block in _BLOCK.split(prose):
        if block.lstrip().startswith("#"):
            block = block.partition("\n")[2]
        if not _CHINESE.search(block):
            found += sentences(_LABEL.sub("", _MARKS.sub("", block)))
    return found


def of_code(text: str) -> tuple[list[Sentence], list[Sentence]]:
    """Return the sentences of a module's docstrings, and those of its messages."""
    docstrings, messages = list[Sentence](), list[Sentence]()
    tree = ast.parse(text)
    described = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        said = _said(node)
        if not said or id(node) in inside or _CHINESE.search(said):
            continue
        blocks = [part for block in re.split(r"\n\s*\n", said) for part in sentences(block)]
        if id(node) in described:
            docstrings += blocks
        else:
            messages += (each for each in blocks if each.words >= _FEWEST and " " in said.strip())
    return docstrings, messages


def _said(node: ast.AST) -> str:
    """Return a text of a program, with one word for what is put in later."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_said(part) or "code" for part in node.values)
    return ""


def figures(found: list[Sentence], people: Iterable[str]) -> dict[str, float]:
    """Measure sentences."""
    words, count = [each.words for each in found], len(found) or 1
    return {
        "sentences": len(found),
        "mean": round(sum(words) / count, 1),
        "longest": max(words, default=0),
        "colons": round(100 * sum(each.has_colon for each in found) / count),
        "says": sum(each.says(people) for each in found),
        f"above {LONGEST}": sum(number > LONGEST for number in words),
    }


def refused(path: str, text: str, words: Mapping[str, str]) -> list[str]:
    """Name each word of the list in a text, with what to write instead."""
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
    return [
        f"{path}:{row}: {found[1]!r}; write: {words[found[1].lower()]}"
        for row, line in enumerate(text.splitlines(), 1)
        for found in pattern.finditer(line)
    ]


def beyond(
    name: str, found: list[Sentence], limits: Mapping[str, float], people: Iterable[str]
) -> Iterator[str]:
    """Name each figure of a text that is above its limit, with the sentences that make it so."""
    measured = figures(found, people)
    for figure, limit in limits.items():
        if measured[figure] <= limit:
            continue
        yield f"{name}: {figure} is {measured[figure]:g}, at most {limit:g}"
        for each in found:
            is_cause = {
                "longest": each.words > limit,
                "colons": each.has_colon,
                "says": each.says(people),
                f"above {LONGEST}": each.words > LONGEST,
            }
            if is_cause.get(figure):
                yield f"  {each.words} words: {each.text[:120]}"


def limits_of(page: str, rules: Mapping[str, Any]) -> dict[str, float]:
    """Return the limits of a page: the last pattern that matches it counts."""
    matching = (limits for pattern, limits in rules["pages"].items() if fnmatch(page, pattern))
    *_, last = matching
    return dict(last)


def problems(root: Path, rules: Mapping[str, Any]) -> list[str]:
    """Return everything in a repository that breaks the rules."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    found, code = list[str](), {name: list[Sentence]() for name in rules["code"]}
    for name in sorted({*names}):
        path = root / name
        if not _SHIPPED.search(name) or name.startswith(_OTHERS):
            continue
        if not path.is_file() or path.is_symlink():
            continue
        text = path.read_text(encoding="utf-8")
        found += refused(name, text, rules["words"])
        if name.endswith(".md"):
            found += beyond(name, of_page(text), limits_of(name, rules), rules["people"])
        elif name.endswith(".py") and name.startswith(_CODE):
            for kind, each in zip(code, of_code(text), strict=True):
                code[kind] += each
    for kind, each in code.items():
        found += beyond(f"all {kind}", each, rules["code"][kind], rules["people"])
    return found


def main(*pages: str) -> int:
    """Print the figures of the pages or, without any, all problems; return the exit code."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    for page in pages:
        found = of_page(Path(page).read_text(encoding="utf-8"))
        print(
            page,
            *(f"{name} {number:g}" for name, number in figures(found, rules["people"]).items()),
        )
    broken = [] if pages else problems(ROOT, rules)
    print("\n".join(broken), end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
