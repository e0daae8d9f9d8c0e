"""The text about one stack, for a comment on a request or for an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.settings.base import counted
from tpustack.ci import inert
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
        f"### {_TITLES[command]} stack {inert.code(result.stack)}: {result.outcome.value}",
        *(f"> {inert.prose(note)}" for note in result.notes),
        *_problem(result),
        *_violations(result.violations),
        *_replaced(result.replaced),
        *_changes(command, result),
        *_unfinished(result.unfinished),
        *_cost(result.cost),
    ]
    return inert.shortened("\n\n".join(parts) + "\n", LONGEST, _CUT)


def _problem(result: Result) -> Iterator[str]:
    if result.problem:
        yield inert.block(result.problem, "text")


def _violations(violations: Sequence[Violation] | None) -> Iterator[str]:
    if violations is None:
        return
    if not violations:
        yield "**Policies**: every rule is kept."
        return
    lines = [
        f"- {inert.code(each.rule)} ({inert.prose(each.level)}): {inert.prose(each.message)}"
        for each in violations
    ]
    yield "**Policies**\n\n" + "\n".join(lines)


def _replaced(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        lines = [
            f"- {inert.code(change.type)} **{inert.prose(change.name)}**"
            + (f", because of {_listed(change.because)}" if change.because else "")
            for change in changes
        ]
        yield "**Will be replaced** (deleted and made again)\n\n" + "\n".join(lines)


def _changes(command: str, result: Result) -> Iterator[str]:
    if not result.changes:
        if result.outcome is Outcome.NO_CHANGE:
            yield "Nothing changes."
        return
    lines = [_change(change) for change in result.changes]
    what = {"drift": "changed by somebody else", "preview": "to change"}.get(command, "changed")
    count = f"{counted(len(lines), 'resource')} {what}"
    listing = inert.block("\n".join(lines), "diff")
    yield f"<details open><summary>{count}</summary>\n\n{listing}\n\n</details>"


def _change(change: Change) -> str:
    operation, kind, name = map(inert.line, (change.operation, change.type, change.name))
    of = f" [{inert.line(', '.join(change.properties))}]" if change.properties else ""
    return f"{_SIGNS.get(operation, '?')} {operation:8} {kind} {name}{of}"


def _unfinished(changes: Sequence[Change]) -> Iterator[str]:
    if changes:
        lines = [
            f"- {inert.line(each.operation)} {inert.code(each.type)} **{inert.prose(each.name)}**"
            for each in changes
        ]
        yield f"**Failed** ({len(lines)})\n\n" + "\n".join(lines)


def _cost(cost: CostChange | None) -> Iterator[str]:
    if cost:
        before, after = cost.before or "nothing", cost.after or "unknown"
        difference = cost.difference or "unknown difference"
        yield f"**Cost an hour**: {inert.prose(f'{before} → {after} ({difference})')}"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(map(inert.code, paths))
