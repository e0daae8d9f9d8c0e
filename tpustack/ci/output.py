"""The files that a run writes: a text for each stack, and result.json for programs."""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from tpustack.ci import inert, markdown
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result, document
from tpustack.errors import UsageError

RESULTS = "result.json"
_STACK = re.compile(r"[A-Za-z0-9_-]{1,100}")
# What a run about a hundred stacks writes is far shorter.
_LONGEST = 50_000_000
_RESULTS = TypeAdapter(list[Result])


def write(folder: Path, command: str, results: Sequence[Result], seconds: float) -> None:
    """Write STACK.md for each stack, and result.json."""
    for result in results:
        path = folder / f"{result.stack}.md"
        path.write_text(markdown.text(command, result), encoding="utf-8")
    whole = json.dumps(document(command, results, seconds), indent=2, ensure_ascii=False)
    (folder / RESULTS).write_text(whole + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Texts:
    """The files of a run: a text by stack, and the stacks that drifted."""

    by_stack: dict[str, str]
    drifted: set[str]


def read(
    folder: Path, command: str, stacks: re.Pattern[str] = _STACK, notes: Sequence[str] = ()
) -> Texts:
    """Read what a run of `command` wrote, perhaps in another job, whose files are not trusted.

    The texts are made anew from plain data, so that no other job decides what they look like.

    Args:
        folder: the run's files.
        command: the command whose results these must be.
        stacks: the stacks that they may be about.
        notes: what a reader should know of each.

    Raises:
        UsageError: if there is no such run, or it is about other stacks.
    """
    try:
        with (folder / RESULTS).open("rb") as file:
            found = json.loads(file.read(_LONGEST))
        if found["command"] != command:
            raise ValueError(f"they are of {found['command']!r}, not of {command!r}")
        results = _RESULTS.validate_python(found["stacks"])
        if strange := [each.stack for each in results if not stacks.fullmatch(each.stack)]:
            raise ValueError(f"{strange[0]!r} is no stack of this run")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{folder} has no results of a {command}: {inert.line(str(error))}"
        ) from None
    texts = {each.stack: markdown.text(command, each.noting(*notes)) for each in results}
    drifted = {each.stack for each in results if each.outcome is Outcome.DRIFT}
    return Texts(texts, drifted)


def unpack_results(archive: bytes, folder: Path) -> None:
    """Extract a run's results, for `read`, from an archive of its files."""
    _unpack(archive, RESULTS, folder)


def unpack_plan(archive: bytes, folder: Path, stack: str) -> str:
    """Extract the plan of a stack from its preview's files, and no other; return the stack.

    Returns nothing if there is none: the change does not touch the stack.
    """
    return stack if _unpack(archive, f"{stack}.plan.json", folder) else ""


def _unpack(archive: bytes, name: str, folder: Path) -> bool:
    """Extract a file from an archive that somebody else made; return whether there is one.

    The others are not read: a few bytes of an archive may stand for gigabytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            found = [e for e in packed.infolist() if PurePosixPath(e.filename).name == name]
            if not found:
                return False
            if len(found) > 1 or found[0].file_size > _LONGEST:
                raise UsageError(f"the preview's files have {name} twice, or it is too long")
            (folder / name).write_bytes(packed.read(found[0]))
            return True
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise UsageError(f"the preview's files are no archive: {inert.line(str(error))}") from None
