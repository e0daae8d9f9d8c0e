"""What every section of the settings has in common."""

from __future__ import annotations

import ast
import inspect
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
"""A text that is not empty."""


class StrEnum(str, Enum):
    """An enumeration of texts (`enum.StrEnum` comes with Python 3.11; 3.10 must run this too)."""

    def __str__(self) -> str:
        return str(self.value)


class Section(BaseModel):
    """A group of settings: camelCase in the stack file, unknown names are errors, immutable.

    Numbers and flags are no texts there. What is in no group is a text to Pulumi, whatever the file
    says.

    The docstring below a setting is its description.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        strict=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in descriptions(cls).items():
            properties[name]["description"] = text
        return schema


@cache
def descriptions(section: type[Section]) -> dict[str, str]:
    """Return the docstrings below a section's settings, by their names in a stack file.

    Pydantic could read them when a section is imported (`use_attribute_docstrings`). That takes a
    third of the import, and a preview without problems needs none.
    """
    inherited = descriptions(base) if issubclass(base := section.__bases__[0], Section) else {}
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    return inherited | {
        to_camel(setting.target.id): inspect.cleandoc(str(below.value.value))
        for setting, below in pairwise(definition.body)
        if isinstance(setting, ast.AnnAssign)
        and isinstance(setting.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def one_line(description: str | None) -> str:
    """Return a description without the line breaks that it has in the source."""
    return " ".join((description or "").split())
