"""The mark on what a stack makes, by which it knows it again.

Names don't tell two stacks apart that are called the same and live in two backends; their marks do.
The engine writes what it is about to make into the stack's own state, the mark included. So
`tpustack recover` takes only what carries this stack's mark, and nothing of a colleague's.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.names import MADE_FOR, MARK, mark_of

# A resource keeps the mark that it was made with, also when the stack moves to another backend.
KEPT_LABEL = [f'labels["{MARK}"]']
"""What a resource whose labels are marked ignores of later changes."""
KEPT_DESCRIPTION = ["description"]
"""The same for a resource whose description is marked."""


def labels(given: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with the mark."""
    return {**given, MARK: _mark()}


def description() -> str:
    """Return a description with the mark, for what has no labels."""
    return f"{MADE_FOR}{pulumi.get_stack()} ({_mark()})"


def _mark() -> str:
    return mark_of(pulumi.get_stack())
