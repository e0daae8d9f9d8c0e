"""What a run leaves: a text and, for programs, one file of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tpustack.ci import markdown
from tpustack.ci.result import Result, document

RESULTS = "result.json"


def write(folder: Path, command: str, results: Sequence[Result], seconds: float) -> None:
    """Write STACK.md for each stack, and result.json."""
    for result in results:
        path = folder / f"{result.stack}.md"
        path.write_text(markdown.text(command, result), encoding="utf-8")
    whole = json.dumps(document(command, results, seconds), indent=2, ensure_ascii=False)
    (folder / RESULTS).write_text(whole + "\n", encoding="utf-8")


def texts(folder: Path) -> dict[str, str]:
    """The texts that a run wrote, by stack. Raises OSError, ValueError, KeyError if it did not."""
    results = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    return {
        each["stack"]: (folder / f"{each['stack']}.md").read_text(encoding="utf-8")
        for each in results["stacks"]
    }
