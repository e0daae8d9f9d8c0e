"""An estimate: a line for each part, with its price as configured, on demand and as spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from infra.catalog.model import Source
from infra.catalog.prices import Price

HOURS_PER_DAY = 24


@dataclass(frozen=True)
class Line:
    """One part of a stack. Prices are for an hour; None: no source in the catalog names it."""

    part: str
    what: str
    configured: Price | None
    on_demand: Price | None
    spot: Price | None

    @classmethod
    def fixed(cls, part: str, what: str, price: Price | None) -> Line:
        """Return a part that costs the same whichever way the machines are bought."""
        return cls(part, what, price, price, price)


@dataclass(frozen=True)
class Total:
    """A sum in US dollars for an hour; not `complete` if a part's price is unknown."""

    hour: Decimal
    complete: bool


@dataclass(frozen=True)
class Estimate:
    """The parts of a stack, and a run of `hours` hours."""

    title: str
    region: str
    hours: Decimal
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def configured(self) -> Total:
        """As the stack is set."""
        return _total([line.configured for line in self.lines])

    @property
    def on_demand(self) -> Total:
        """With all machines on demand."""
        return _total([line.on_demand for line in self.lines])

    @property
    def spot(self) -> Total:
        """With all machines bought so that Google may take them away."""
        return _total([line.spot for line in self.lines])

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the prices come from, each once."""
        prices = [
            price
            for line in self.lines
            for price in (line.configured, line.on_demand, line.spot)
            if price
        ]
        return tuple(dict.fromkeys(price.source for price in prices))


def _total(prices: Sequence[Price | None]) -> Total:
    known = [price.amount for price in prices if price]
    return Total(sum(known, Decimal(0)), complete=len(known) == len(prices))
