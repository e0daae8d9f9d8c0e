"""What every section of the settings has in common, and how problems with them are reported."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

from tpu_core.words import plural

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

    Numbers and flags are not texts there. What is in no group is a text to Pulumi, whatever it is
    in the file.

    The docstring below a setting is its description.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, protected_namespaces=(), strict=True
    )

    def written(self) -> dict[str, object]:
        """Return what is set, as the stack file has it."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

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


# --- Problems with settings, and the one message that reports all of them


class _Unset:
    """The value of a setting that is missing; prints as "(not set)"."""

    def __repr__(self) -> str:
        return "(not set)"


UNSET: Final = _Unset()


@dataclass(frozen=True)
class Problem:
    """One problem: the setting, its value, what is wrong with it, and what would be right."""

    setting: str
    """Path as in the stack file, for example `tpu.acceleratorType`."""
    value: object
    why: str
    cure: str

    def __str__(self) -> str:
        end = "" if self.cure.endswith("?") else "."
        about = f"{self.setting}: {_shown(self.value)}"
        if self.value is UNSET and self.why.startswith("is "):
            about = self.setting
        return f"{_printable(about)} {self.why}. {self.cure}{end}"


def holds_secret(value: object) -> bool:
    """Return whether a setting is, or has in it, what Pulumi keeps encrypted (`secure: …`)."""
    if isinstance(value, dict):
        encrypted = [*value] == ["secure"] and isinstance(value["secure"], str)
        return encrypted or any(map(holds_secret, value.values()))
    return isinstance(value, list) and any(map(holds_secret, value))


def secret_problem(setting: str) -> Problem:
    """Return the problem with a setting that is a secret."""
    return Problem(
        setting,
        "[secret]",
        "is a secret, but settings are stored unencrypted in the state and in the resources",
        "Set it without --secret if it is public. Put a token in Secret Manager, from which the "
        "training reads it (docs/ci-cd.md)",
    )


def misplaced(values: Mapping[str, object], why: str, cure: str) -> Iterator[Problem]:
    """Yield a problem for each setting, by its path, that has a value and should have none."""
    for setting, value in values.items():
        if value not in (None, False):
            yield Problem(setting, value, why, cure)


class SettingsError(Exception):
    """The settings of a stack cannot be used. The message names every problem.

    `rest` are the settings without those that have problems, if there are such.
    """

    def __init__(
        self, stack: str, problems: Sequence[Problem], rest: Section | None = None
    ) -> None:
        self.stack = stack
        self.problems = tuple(problems)
        self.rest = rest
        count = plural(len(problems), "problem")
        lines = [f"{count} in the settings of stack {stack!r} (stacks/Pulumi.{stack}.yaml):"]
        lines += [f"  - {problem}" for problem in problems]
        lines.append("Nothing was created or changed.")
        super().__init__("\n".join(lines))


def _shown(value: object) -> str:
    if value is UNSET:
        return repr(UNSET)
    if value is None or isinstance(value, (str, int, float, bool, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _printable(text: str) -> str:
    """Return a foreign text without anything that controls a terminal or a pipeline's log."""
    kept = (each if each.isprintable() else f"\\u{ord(each):04x}" for each in text)
    return "".join(kept)
