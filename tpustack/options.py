"""Options that several commands share: what they take, and what a shell offers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpustack.errors import UsageError

if TYPE_CHECKING:
    from infra.settings.base import Problem

_MOST_HOURS = 100_000
_F = TypeVar("_F", bound=Callable[..., Any])


def stacks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the stacks that have a file."""
    from tpustack.stacks.files import all_stacks

    try:
        return [name for name in all_stacks() if name.startswith(incomplete)]
    except UsageError:
        return []


def zones(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the zones with TPUs."""
    from infra.catalog import Catalog

    types = Catalog().accelerators.values()
    found = {zone for tpu in types for zone in tpu.zones}
    return sorted(zone for zone in found if zone.startswith(incomplete))


def accelerators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the types of TPU, smallest first within a family."""
    from infra.catalog import Catalog

    return [name for name in Catalog().accelerators if name.startswith(incomplete)]


def stack(help: str, *, required: bool = False) -> Callable[[_F], _F]:
    """Declare `--stack`, the name of one stack."""
    return click.option("--stack", "-s", shell_complete=stacks, required=required, help=help)


def as_json(thing: str = "result") -> Callable[[_F], _F]:
    """Declare `--json`, handed over as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print the {thing} as JSON.")


class Hours(click.ParamType[Decimal]):
    """Hours as an exact number above 0."""

    name = "hours"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Decimal:
        """Return the number. Fails the command, exit code 2, if it is none or out of range."""
        try:
            hours = Decimal(str(value))
            fits = 0 < hours <= _MOST_HOURS
        except InvalidOperation:
            fits = False
        if not fits:
            self.fail(f"{value!r} is not a number of hours above 0, at most {_MOST_HOURS}", param)
        return hours


def refuse(problems: Sequence[Problem]) -> None:
    """Raise UsageError with all problems, if there are any."""
    if problems:
        raise UsageError("\n".join(str(problem) for problem in problems))
