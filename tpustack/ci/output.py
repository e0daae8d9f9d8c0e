"""The files that a run writes: a text for each stack, and result.json for programs."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tpustack.ci import markdown
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result, document
from tpustack.errors import UsageError

RESULTS = "result.json"
_STACK = re.compile(r"[A-Za-z0-9_-]{1,100}")


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


def read(folder: Path) -> Texts:
    """Read what `write` wrote, perhaps in another job, whose files are not trusted.

    Raises:
        UsageError: if there is no such run, or it names no stacks.
    """
    try:
        stacks = json.loads((folder / RESULTS).read_text(encoding="utf-8"))["stacks"]
        outcomes = {each["stack"]: each["outcome"] for each in stacks}
        if strange := [name for name in outcomes if not _STACK.fullmatch(name)]:
            raise ValueError(f"{strange[0]!r} is no stack")
        texts = {
            name: (folder / f"{name}.md").read_text(encoding="utf-8")[: markdown.LONGEST]
            for name in outcomes
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} has no results of `tpustack ci`: {error}") from None
    drifted = {name for name, outcome in outcomes.items() if outcome == Outcome.DRIFT.value}
    return Texts(texts, drifted)


def unpack_plans(archive: bytes, folder: Path) -> list[str]:
    """Extract the plans from an archive of a preview's files; return their stacks."""
    stacks = []
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for name in packed.namelist():
            stack, ending, _ = Path(name).name.partition(".plan.json")
            if ending and _STACK.fullmatch(stack):
                (folder / f"{stack}{ending}").write_bytes(packed.read(name))
                stacks.append(stack)
    return sorted(stacks)
