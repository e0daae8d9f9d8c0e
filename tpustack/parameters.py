"""Kinds of command line arguments, and the message about wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation

import click

from infra.settings.problems import Problem
from tpustack.errors import UsageError

_MOST_HOURS = 100_000


class Hours(click.ParamType[Decimal]):
    """Hours as an exact number above 0."""

    name = "hours"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        """The number. Fails the command, exit code 2, if it is none or out of range."""
        try:
            hours = Decimal(str(value))
            fits = 0 < hours <= _MOST_HOURS
        except InvalidOperation:
            fits = False
        if not fits:
            self.fail(f"{value!r} is not a number of hours above 0, at most {_MOST_HOURS}", param)
        return hours


def refuse(problems: Sequence[Problem]) -> None:
    """Raises UsageError with all problems, if there are any."""
    if problems:
        raise UsageError("\n".join(str(problem) for problem in problems))
