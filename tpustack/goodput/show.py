"""Show an account as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from infra.cost import dollars
from tpustack.inert import line

if TYPE_CHECKING:
    from rich.table import Table

    from tpu_training.goodput.account import Account
    from tpustack.goodput.money import Money

# The least wall time that is told in a unit, the unit's seconds and its name.
_UNITS = ((7200.0, 3600, "hours"), (0.0, 60, "minutes"))


def states_table(total: Account, money: Money | None) -> Table:
    """Return where the wall time went."""
    from rich.table import Table

    from tpu_training.goodput.account import STATES

    columns = ["part", *(["cost"] if money else []), "what it is"]
    table = Table("state", _unit(total)[1], *columns)
    rows = [(name, total.seconds[name], meaning) for name, meaning in STATES]
    for name, seconds, meaning in [*rows, ("", total.wall, "wall time")]:
        amount = (money.states[name] if name else money.total) if money else None
        cost = [] if amount is None else [dollars(amount)]
        table.add_row(name, _spent(seconds, total), _part(seconds, total.wall), *cost, meaning)
    return table


def causes_table(total: Account) -> Table:
    """Return what took the time that is no goodput."""
    from rich.table import Table
    from rich.text import Text

    table = Table("badput by cause", _unit(total)[1], "part")
    for cause, seconds in total.causes.items():
        table.add_row(Text(line(cause)), _spent(seconds, total), _part(seconds, total.wall))
    return table


def machines_table(total: Account) -> Table | None:
    """Return what each TPU and each machine did; None if there is nothing to tell apart."""
    from rich.table import Table
    from rich.text import Text

    table = Table("TPU or machine", f"{_unit(total)[1]} by state")
    for tpu, states in total.tpus.items():
        table.add_row(Text(line(tpu)), Text(line(_spoken(states, total))))
    for machine, seconds in total.machines.items():
        table.add_row(Text(line(machine) or "not named"), f"training {_spent(seconds, total)}")
    return table if total.tpus or len(total.machines) > 1 else None


def _spoken(seconds: Mapping[str, float], total: Account) -> str:
    return ", ".join(f"{state} {_spent(spent, total)}" for state, spent in seconds.items())


def _unit(total: Account) -> tuple[int, str]:
    return next((size, name) for least, size, name in _UNITS if total.wall >= least)


def _spent(seconds: float, total: Account) -> str:
    return f"{seconds / _unit(total)[0]:.2f}"


def _part(seconds: float, wall: float) -> str:
    return f"{seconds / wall if wall else 0.0:.1%}"
