"""Problems with settings, and the one message that reports all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class _Unset:
    """The value of a setting that is missing; prints as "(not set)"."""

    def __repr__(self) -> str:
        return "(not set)"


UNSET: Final = _Unset()


@dataclass(frozen=True)
class Problem:
    """One problem: the setting, its value, what is wrong with it, and what would be right."""

    setting: str
    """Path as in the stack file, e.g. `tpu.acceleratorType`."""
    value: object
    why: str
    cure: str

    def __str__(self) -> str:
        end = "" if self.cure.endswith("?") else "."
        return f"{self.setting}: {_shown(self.value)} {self.why}. {self.cure}{end}"


def misplaced(values: Mapping[str, object], why: str, cure: str) -> Iterator[Problem]:
    """Yield a problem for each setting, by its path, that has a value and should have none."""
    for setting, value in values.items():
        if value not in (None, False):
            yield Problem(setting, value, why, cure)


class SettingsError(Exception):
    """The settings of a stack cannot be used. The message names every problem."""

    def __init__(self, stack: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{count} in the settings of stack {stack!r} (stacks/Pulumi.{stack}.yaml):"]
        lines += [f"  - {problem}" for problem in problems]
        lines.append("Nothing was created or changed.")
        super().__init__("\n".join(lines))


def _shown(value: object) -> str:
    if value is UNSET:
        return repr(UNSET)
    if isinstance(value, (str, int, float, bool, list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
