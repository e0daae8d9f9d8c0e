"""An estimate as text, as a person reads it, and as JSON, as a program does."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from infra.catalog.prices import Price
from infra.cost.estimate import HOURS_PER_DAY, Estimate, Total

UNKNOWN = "unknown"


def dollars(amount: Decimal, places: int = 2) -> str:
    """Return an amount like `$12,288.00`; half a cent is rounded up."""
    return f"${amount.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,f}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows of cells as lines with even columns, the first `left` of them left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(estimate: Estimate) -> str:
    """Return the estimate as lines of text."""
    run = f"{estimate.hours:f} h"
    heading = ("", "", "hour", "day", f"run of {run}", "run on demand", "run on spot")
    rows: list[tuple[str, ...]] = [heading]
    for line in estimate.lines:
        others = [_run(price, estimate.hours) for price in (line.on_demand, line.spot)]
        rows.append((line.part, line.what, *_amounts(line.configured, estimate.hours), *others))
    totals = (estimate.configured, estimate.on_demand, estimate.spot)
    rows.append(("Total", "", *_totals(totals, estimate.hours)))
    title = f"{estimate.title} in {estimate.region}, US dollars"
    return "\n".join([title, "", *aligned(rows, left=2), "", *_notes(estimate)])


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Return the estimate with exact amounts as texts; an unknown amount is null."""
    return {
        "title": estimate.title,
        "region": estimate.region,
        "currency": "USD",
        "hours": _plain(estimate.hours),
        "lines": [
            {
                "part": line.part,
                "what": line.what,
                "configured": _spans(line.configured, estimate.hours),
                "onDemand": _spans(line.on_demand, estimate.hours),
                "spot": _spans(line.spot, estimate.hours),
            }
            for line in estimate.lines
        ],
        "total": {
            name: {**_times(total.hour, estimate.hours), "complete": total.complete}
            for name, total in (
                ("configured", estimate.configured),
                ("onDemand", estimate.on_demand),
                ("spot", estimate.spot),
            )
        },
        "notes": list(estimate.notes),
    }


def _amounts(price: Price | None, hours: Decimal) -> tuple[str, str, str]:
    if price is None:
        return (UNKNOWN,) * 3
    hour = price.amount
    return dollars(hour, 4), dollars(hour * HOURS_PER_DAY), dollars(hour * hours)


def _run(price: Price | None, hours: Decimal) -> str:
    return dollars(price.amount * hours) if price else UNKNOWN


def _totals(totals: Sequence[Total], hours: Decimal) -> tuple[str, ...]:
    configured, *others = totals
    amounts = [
        (configured, dollars(configured.hour, 4)),
        (configured, dollars(configured.hour * HOURS_PER_DAY)),
        *((total, dollars(total.hour * hours)) for total in (configured, *others)),
    ]
    return tuple(_sum(total, text) for total, text in amounts)


def _sum(total: Total, text: str) -> str:
    if total.complete:
        return text
    return f"over {text}" if total.hour else UNKNOWN


def _notes(estimate: Estimate) -> list[str]:
    notes = list(estimate.notes)
    for line in estimate.lines:
        ways = {"as it is set": line.configured, "on demand": line.on_demand, "spot": line.spot}
        if unknown := [way for way, price in ways.items() if price is None]:
            notes.append(
                f"{UNKNOWN}: no source in the catalog has a price of {line.part} {line.what} in "
                f"{estimate.region} ({', '.join(unknown)})."
            )
    notes += [f"Prices of {source.date}: {source.url}" for source in estimate.sources]
    return notes


def _spans(price: Price | None, hours: Decimal) -> dict[str, Any] | None:
    if price is None:
        return None
    source = {"url": price.source.url, "date": price.source.date.isoformat()}
    return {**_times(price.amount, hours), "source": source}


def _times(hour: Decimal, hours: Decimal) -> dict[str, str]:
    return {
        "hour": _plain(hour),
        "day": _plain(hour * HOURS_PER_DAY),
        "run": _plain(hour * hours),
    }


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"
