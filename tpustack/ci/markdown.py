"""The text about one stack, for a comment on a request or for an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpustack.ci.outcome import Outcome
from tpustack.ci.result import CostChange, Result
from tpustack.engine.events import Change, Violation

# GitHub takes 65,536 characters; the rest is for what others put around the text.
LONGEST = 64_000
_CUT = "\n\n… cut here: the whole text is in the run's files.\n"
_SIGNS = {"create": "+", "update": "~", "delete": "-", "replace": "±"}
_TITLES = {
    "preview": "Preview of",
    "deploy": "Deployment of",
    "drift": "Drift of",
    "sweep": "Sweep of",
    "destroy": "Destruction of",
}


def marker(command: str, stack: str) -> str:
    """Return the invisible line by which a later run finds this text, to replace it."""
    return f"<!-- tpustack ci {command} {stack} -->"


def text(command: str, result: Result) -> str:
    """Return the whole text, shorter than LONGEST."""
    parts = [
        marker(command, result.stack),
        f"### {_TITLES[command]} stack `{result.stack}`: {result.outcome.value}",
        *(f"> {note}" for note in result.notes),
        *_problem(result),
        *_violations(result.violations),
        *_replaced(result.replaced),
        *_changes(command, result),
        *_cost(result.cost),
    ]
    whole = "\n\n".join(parts) + "\n"
    return whole if len(whole) < LONGEST else _shortened(whole)


def _shortened(whole: str) -> str:
    kept = whole[: LONGEST - len(_CUT) - 20].rpartition("\n")[0]
    open_fence = "\n```" if kept.count("\n```") % 2 else ""
    return f"{kept}{open_fence}{_CUT}"


def _problem(result: Result) -> Iterator[str]:
    if result.problem:
        # The fence is longer than any in the text.
        yield f"````text\n{result.problem}\n````"


def _violations(violations: Sequence[Violation] | None) -> Iterator[str]:
    if violations is None:
        return
    if not violations:
        yield "**Policies**: every rule is kept."
        return
    lines = [f"- `{each.rule}` ({each.level}): {_line(each.message)}" for each in violations]
    yield "**Policies**\n\n" + "\n".join(lines)


def _replaced(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        lines = [
            f"- `{change.type}` **{change.name}**"
            + (f", because of {_listed(change.because)}" if change.because else "")
            for change in changes
        ]
        yield "**Will be replaced** (deleted and made again)\n\n" + "\n".join(lines)


def _changes(command: str, result: Result) -> Iterator[str]:
    if not result.changes:
        if result.outcome is Outcome.NO_CHANGE:
            yield "Nothing changes."
        return
    lines = [
        f"{_SIGNS.get(change.operation, '?')} {change.operation:8} {change.type} {change.name}"
        + (f" [{', '.join(change.properties)}]" if change.properties else "")
        for change in result.changes
    ]
    what = {"drift": "changed by somebody else", "preview": "to change"}.get(command, "changed")
    count = f"{len(lines)} resource{'s' * (len(lines) != 1)} {what}"
    listing = "\n".join(lines)
    yield f"<details open><summary>{count}</summary>\n\n```diff\n{listing}\n```\n\n</details>"


def _cost(cost: CostChange | None) -> Iterator[str]:
    if cost:
        before, after = cost.before or "nothing", cost.after or "unknown"
        yield f"**Cost an hour**: {before} → {after} ({cost.difference or 'unknown difference'})"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _line(message: str) -> str:
    return " ".join(message.split())
