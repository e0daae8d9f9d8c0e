"""The plan that was reviewed: whether it is one of this stack, commit and state, and still fits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from infra.settings.parse import load_yaml, stack_path
from tpustack.ci import plan, sealed
from tpustack.ci.job import Job
from tpustack.ci.sealed import Seal, Sealed
from tpustack.ci.touched import head
from tpustack.engine.stack import Done, Stack

TAG = "tpustack:plan"
"""What a deployment notes with a stack: the digest of the plan that it is about to carry out."""


def plan_of(folder: Path, stack: str) -> Path:
    """Return the path of a stack's plan."""
    return folder / f"{stack}.plan.json"


def seal(job: Job, path: Path, stack: str, done: Done) -> Sealed:
    """Seal the plan that a preview has written, and return it."""
    encryption = sealed.encryption_of(stack_path(job.root, stack))
    sealed.seal(path, Seal(stack, head(job.root), done.state, encryption))
    return sealed.read(path)


def taken(folder: Path, stack: str) -> Sealed | None:
    """Return the plan that was reviewed; None if nothing was planned for this stack."""
    path = plan_of(folder, stack)
    return sealed.read(path) if path.exists() else None


def unbound(reviewed: Sealed, stack: str, commit: str, state: str, noted: str | None) -> str:
    """Return why a plan is not one of this stack, commit and state; empty if it is.

    Args:
        reviewed: the plan.
        stack: the stack's name.
        commit: the commit that is checked out.
        state: the digest of the state.
        noted: the digest of the plan that was carried out last, perhaps in part.
    """
    made = reviewed.seal
    if made.stack != stack:
        return f"it is a plan of stack {made.stack}"
    if made.commit != commit:
        return f"it was made from commit {made.commit or '(none)'}, and this is {commit or 'none'}"
    if made.state != state and noted != reviewed.digest:
        return "the state is not the one that it was made from: something else was deployed since"
    return ""


def surplus(
    job: Job, engine: Stack, fresh: Sealed, reviewed: Sealed | None, *, resumed: bool = False
) -> list[str]:
    """Return what would be done now and was not reviewed, a line each."""
    if reviewed is None:
        return plan.surplus(fresh.steps, {})
    file = stack_path(job.root, engine.name).read_text(encoding="utf-8")
    provider = load_yaml(file).get("secretsprovider")
    now, then = sealed.comparable(
        fresh, reviewed, lambda texts, how: engine.decrypted(texts, how, provider)
    )
    return plan.surplus(now, then, resumed=resumed)


def does_not_fit(stack: str, why: str) -> str:
    """Return the refusal of a plan."""
    return (
        f"the reviewed plan of stack {stack} no longer fits: {why}\nNothing was changed. Preview "
        "again, have the new plan reviewed, and deploy that."
    )


def goes_beyond(stack: str, more: Sequence[str]) -> str:
    """Return the refusal of a plan with the steps that were not reviewed."""
    lines = "\n".join(f"  - {line}" for line in more)
    why = "since the review, something else was deployed or changed. Now this would be done, too:"
    return does_not_fit(stack, f"{why}\n{lines}")
