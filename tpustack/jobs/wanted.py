"""Checks what a person wants to submit: every problem at once, before anything is uploaded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tpu_core.paths import NAME
from tpustack.errors import UsageError
from tpustack.jobs.secrets import in_text
from tpustack.jobs.source import Source

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_OPTION_WITH_FILE = re.compile(r"-(r|c|e)\b|--(requirement|constraint|editable)\b")
_LONGEST_TEXT = 256 << 10


@dataclass(frozen=True)
class Wanted:
    """What the person asks for, as the options have it."""

    command: str
    name: str | None
    env: tuple[str, ...]
    requirements: Path | None

    def variables(self) -> dict[str, str]:
        """Return the variables of --env, for arguments without problems."""
        return dict(pair.split("=", 1) for pair in self.env)

    def requirements_text(self) -> str:
        """Return what --requirements holds, for arguments without problems."""
        return self.requirements.read_text("utf-8") if self.requirements else ""


def check(wanted: Wanted, source: Source) -> None:
    """Raise UsageError with everything that is wrong."""
    problems = [
        *_of_name(wanted.name),
        *_of_env(wanted.env),
        *_of_requirements(wanted.requirements),
        *_of_command(wanted.command, source),
    ]
    if problems:
        raise UsageError("\n".join(problems))


def _of_name(name: str | None) -> Iterator[str]:
    if name is not None and not NAME.fullmatch(name):
        yield (
            f"--name: {name!r} is no job name (at most 63 lower-case letters, digits, hyphens, "
            "dots, underscores; a letter or digit first and last). Use one like mnist-1"
        )


def _of_env(pairs: Iterable[str]) -> Iterator[str]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            yield f"--env: {pair!r} is no variable. Write it like NAME=VALUE"
        elif why := in_text(value.encode()):
            yield (
                f"--env: the value of {name} must not go into the bucket: {why}. Let the job get "
                "it from Secret Manager"
            )


def _of_requirements(path: Path | None) -> Iterator[str]:
    if path is None:
        return
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield f"--requirements: {path} can't be read: {getattr(error, 'strerror', error)}"
        return
    if len(text) > _LONGEST_TEXT:
        yield f"--requirements: {path} is longer than {_LONGEST_TEXT >> 10} KiB"
    if why := in_text(text.encode()):
        yield f"--requirements: {path} must not go into the bucket: {why}"
    for number, line in enumerate(text.splitlines(), 1):
        if _OPTION_WITH_FILE.match(line.strip()):
            yield (
                f"--requirements: line {number} of {path} names another file, which the machine "
                "does not have. Write its lines into this one, or lock it"
            )


def _of_command(command: str, source: Source) -> Iterator[str]:
    if not command.strip():
        yield '--command: it is empty. Give one like "python main.py"'
        return
    if why := in_text(command.encode()):
        yield (
            f"--command: it must not go into the bucket: {why}. Let the job get it from Secret "
            "Manager"
        )
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        yield f"--command: bash can't read {command!r}: {str(error).lower()}"
        return
    names = source.archive.names if source.archive and source.kind == "folder" else frozenset()
    for file in _files(words):
        if file not in names:
            brings = f"{source.origin} has no such file" if names else "the job brings no files"
            yield (
                f"--command: it runs {file}, but {brings}. Give the folder that has it by --dir "
                "(is it ignored?)"
            )


def _files(words: list[str]) -> Iterator[str]:
    """Yield the files that a simple command runs, where they are in the job's own folder."""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words = words[1:]
    if not words:
        return
    if words[0].startswith("./"):
        yield words[0][2:]
    if _PYTHON.fullmatch(words[0]):
        scripts = [word for word in words[1:2] if not word.startswith("-")]
        yield from (word.removeprefix("./") for word in scripts if not word.startswith("/"))
