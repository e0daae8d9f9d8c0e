"""Where everything is in a stack's bucket."""

from __future__ import annotations

from typing import Final

DECLARATION: Final = "agent/declaration.json"
"""What the stack declares of its TPUs: `pulumi up` writes it, the agent recreates TPUs from it."""
DATA: Final = "data/"
WHEELS: Final = "wheels/"
JOBS: Final = "jobs/"
NOTICES: Final = "notices/"
"""What Google has announced for each TPU, by its name."""


def finished(job: str) -> str:
    """Return the object that marks a training as finished."""
    return f"{JOBS}{job}/finished"
