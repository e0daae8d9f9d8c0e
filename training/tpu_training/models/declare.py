"""Declare a parameter: its default, its meaning, and what is allowed."""

import dataclasses
import math
from typing import Any


def param(
    default: Any,
    description: str,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a parameter; the range includes `low` and `high`."""
    metadata = {"description": description, "low": low, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)
