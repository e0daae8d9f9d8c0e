"""What every section of the settings has in common."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""A text that is not empty."""


class StrEnum(str, Enum):
    """An enumeration of texts (`enum.StrEnum` comes with Python 3.11; 3.10 must run this too)."""

    def __str__(self) -> str:
        return str(self.value)


class Section(BaseModel):
    """A group of settings: camelCase in the stack file, unknown names are errors, immutable.

    The docstring below a setting is its description.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


def one_line(description: str | None) -> str:
    """Return a description without the line breaks that it has in the source."""
    return " ".join((description or "").split())
