"""What a sweep varies: a range of numbers, or a choice of words, for each parameter."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tpustack.errors import UsageError

Value = float | int | str
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_INTEGER = re.compile(r"[-+]?\d+")
_LOG = ":log"
_LIKE = "Write it like learning_rate=1e-4..1e-1:log, batch=16..256 or optimizer=adam,lamb"
# More digits say nothing of a parameter, and make commands hard to read.
_DIGITS = 6


@dataclass(frozen=True)
class Parameter:
    """A parameter: its range, or its choices.

    Attributes:
        is_log: whether the range is one of orders of magnitude.
    """

    name: str
    low: float | int = 0
    high: float | int = 0
    is_log: bool = False
    choices: tuple[str, ...] = ()

    def at(self, place: float) -> Value:
        """Return the value at a place of the range, from 0 to 1 (exclusive)."""
        if self.choices:
            return self.choices[int(place * len(self.choices))]
        # Each integer has an equal share, also the last.
        end = self.high + 1 if isinstance(self.high, int) else self.high
        if self.is_log:
            value = self.low * (end / self.low) ** place
        else:
            value = self.low + (end - self.low) * place
        return min(int(value), self.high) if isinstance(self.low, int) else self.rounded(value)

    def has(self, value: Value) -> bool:
        """Return whether a value is one of it."""
        if self.choices or isinstance(value, str):
            return value in self.choices
        return self.low <= value <= self.high

    def rounded(self, value: Value) -> Value:
        """Return a value as commands have it, still within the range."""
        if not isinstance(value, float):
            return value
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


def space_of(texts: Iterable[str]) -> tuple[Parameter, ...]:
    """Return what `--param` names. Raises UsageError with everything that is wrong."""
    found: dict[str, Parameter] = {}
    problems: list[str] = []
    for text in texts:
        try:
            parameter = _parse(text)
            if parameter.name in found:
                raise ValueError("it is given twice")
            found[parameter.name] = parameter
        except ValueError as error:
            problems.append(f"--param: {text!r}: {error}")
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(found.values())


def command_with(command: str, values: Mapping[str, Value]) -> str:
    """Return a command with {NAME} replaced, and `--NAME=VALUE` behind it for the others."""
    behind = []
    for name, value in values.items():
        word = shlex.quote(str(value))
        # ${NAME} is a variable of the shell.
        parts = re.split(rf"(?<!\$)\{{{name}\}}", command)
        command = word.join(parts)
        if len(parts) == 1:
            behind.append(f"--{name}={word}")
    return " ".join([command, *behind])


def _parse(text: str) -> Parameter:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise ValueError(f"it names no parameter. {_LIKE}")
    is_log = rest.endswith(_LOG)
    low, dots, high = rest.removesuffix(_LOG).partition("..")
    if dots:
        return _range(name, low, high, is_log=is_log)
    choices = tuple(rest.split(","))
    if is_log or len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
        raise ValueError(f"it is neither a range nor a list of different words. {_LIKE}")
    return Parameter(name, choices=choices)


def _range(name: str, low: str, high: str, *, is_log: bool) -> Parameter:
    number = int if _INTEGER.fullmatch(low) and _INTEGER.fullmatch(high) else float
    try:
        ends = (number(low), number(high))
    except ValueError:
        raise ValueError(f"its ends are no numbers. {_LIKE}") from None
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise ValueError("its first end must be less than its second")
    if is_log and ends[0] <= 0:
        raise ValueError("a range with :log begins above 0")
    return Parameter(name, *ends, is_log=is_log)
