"""The parts of a job's time as people see them: one name and one colour in every picture and page.

Each colour has a contrast of at least 3:1 to the paper of a light page and of a dark one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Some states of the account (`account.STATES`) under one name."""

    name: str
    colour: str
    states: tuple[str, ...]


PARTS = (
    Part("steps that count", "#0072b2", ("step",)),
    Part("input", "#3a8fc0", ("input",)),
    Part("checkpoints, evaluations", "#009e73", ("checkpoint", "evaluating", "between")),
    Part("starting, compiling", "#968200", ("loading", "initialising", "compiling")),
    Part("lost steps", "#c02a1d", ("lost",)),
    Part("TPU away", "#d96c0a", ("queued", "provisioning", "recovering")),
    Part("stopped", "#b5569a", ("stopped",)),
    Part("idle, unknown", "#7a7a7a", ("idle", "away")),
)
