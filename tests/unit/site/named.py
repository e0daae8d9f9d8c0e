"""Every command that people are told to run: in pages, messages, known errors and workflows."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .conftest import PAGES, REPOSITORY, code_blocks, prose

_NAMES = "tpustack|tpu-training|python -m localcloud|make|pulumi|gcloud"
PROGRAM = re.compile(
    r"(?:^|\$\(|&& |\|\| |\| |; )(?:\$ )?(?:\.venv/bin/)?"
    rf"({_NAMES})(?: ([^|>&;#)\n]*))?(?![\w./-])",
    re.M,
)
_TICKED = re.compile(r"`([^`]+)`")
# What a message puts between backticks later stands alone.
_BY_ITSELF = re.compile(r"(?:pulumi|gcloud) [^`\n]*--[^`\n]*")
# A message shows a command on a line of its own by indenting it.
_SHOWN = re.compile(r"^ {2,}(?=\S)", re.M)
_SOURCES = (
    "agent/tpu_agent",
    "bootstrap",
    "core/tpu_core",
    "infra",
    "localcloud/localcloud",
    "policy",
    "tools",
    "tpustack",
)
_PACKAGE = "training/tpu_training"
_TEXTS = ("infra/tpu_infra/catalog/*.yaml", "training/tpu_training/errors/*.json", "stacks/*.yaml")
_SCRIPTS = (
    ".github/workflows/*.yml",
    "ci/*.yml",
    "operator/*.yaml",
    "agent/tpu_agent/startup/*.sh",
)
# What a message puts in when it is written.
_FILLED = "X"


@dataclass(frozen=True)
class Named:
    """A command, where it is named, and whether it is meant to be run as it stands."""

    where: str
    program: str
    arguments: str
    whole: bool

    @property
    def words(self) -> list[str]:
        """The arguments as a shell would split them; what `…` stands for is left out."""
        said = self.arguments if self.whole else re.sub(r"\S*….*", "", self.arguments)
        try:
            return shlex.split(said)
        except ValueError:  # An apostrophe of a sentence.
            return said.split()


@lru_cache(maxsize=1)
def named() -> tuple[Named, ...]:
    """Return all commands."""
    return (*_of_pages(), *_of_messages(), *_of_texts(), *_of_scripts())


def in_blocks(page: str) -> Iterator[Named]:
    """Yield each program that a block of `page` runs, with its arguments."""
    for block in code_blocks(page):
        yield from _run(page, block.replace("\\\n", " "), whole=True)


def in_prose(page: str) -> Iterator[Named]:
    """Yield each program that `page` names between backticks, with the arguments given there."""
    yield from _ticked(page, prose(page))


def _of_pages() -> Iterator[Named]:
    for page in PAGES:
        yield from in_blocks(page)
        yield from in_prose(page)


def _of_messages() -> Iterator[Named]:
    for folder in (*_SOURCES, _PACKAGE):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            where = path.relative_to(REPOSITORY).as_posix()
            for text in _texts(path):
                yield from _ticked(where, text)
                if _BY_ITSELF.fullmatch(text):
                    yield from _run(where, text, whole=False)
                if _SHOWN.search(text):
                    yield from _run(where, _SHOWN.sub("", text), whole=False)


def _of_texts() -> Iterator[Named]:
    for path in _found(_TEXTS):
        where = path.relative_to(REPOSITORY).as_posix()
        yield from _ticked(where, path.read_text(encoding="utf-8").replace('\\"', '"'))


def _of_scripts() -> Iterator[Named]:
    for path in _found(_SCRIPTS):
        where = path.relative_to(REPOSITORY).as_posix()
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        yield from _run(where, re.sub(r"^ *(- )?(run: )?", "", text, flags=re.M), whole=False)


def _texts(path: Path) -> Iterator[str]:
    """Yield each text of a module, with what is put in later as one word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else _FILLED
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in inner:
            yield node.value if isinstance(node.value, str) else ""


def _ticked(where: str, text: str) -> Iterator[Named]:
    for code in _TICKED.findall(text):
        yield from _run(where, code.replace("\n", " "), whole=False)


def _run(where: str, text: str, *, whole: bool) -> Iterator[Named]:
    for program, arguments in PROGRAM.findall(text):
        yield Named(where, program, arguments, whole)


def _found(patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in REPOSITORY.glob(pattern))
