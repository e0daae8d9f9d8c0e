"""What the wall time of a job has cost, by the catalog's prices."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from infra.cost import dollars

if TYPE_CHECKING:
    from infra.cost import Estimate
    from tpu_training.goodput.account import Account

# Google takes nothing for a TPU that is not there; the other machines cost on.
_WITHOUT_TPU = ("queued", "provisioning", "recovering", "stopped")
_SECONDS_PER_HOUR = 3600
_PLACES_OF_A_STEP = 6


@dataclass(frozen=True)
class Money:
    """US dollars of a job's wall time.

    Attributes:
        hour: What the whole stack costs in an hour.
        states: What each state has cost.
        step: What a step that counts has cost, with all that did not count; None without any.
        complete: Whether the price of every part is known; if not, all of it is too little.
    """

    hour: Decimal
    states: dict[str, Decimal]
    step: Decimal | None
    complete: bool

    @property
    def total(self) -> Decimal:
        """All of it."""
        return sum(self.states.values(), Decimal(0))

    def __str__(self) -> str:
        """Format it for people."""
        most = "" if self.complete else "at least "
        step = f", {most}{dollars(self.step, _PLACES_OF_A_STEP)} a step" if self.step else ""
        return f"{most}{dollars(self.total)} at {dollars(self.hour, 4)} an hour{step}"

    def to_dict(self) -> dict[str, object]:
        """Return all of it for JSON."""
        return {
            "hour": f"{self.hour:f}",
            "total": f"{self.total:f}",
            "step": None if self.step is None else f"{self.step:f}",
            "states": {state: f"{amount:f}" for state, amount in self.states.items()},
            "complete": self.complete,
        }


def money_of(total: Account, estimate: Estimate) -> Money:
    """Price a job's account by the stack's estimate as it is set now."""
    hour = estimate.configured
    tpu = sum(
        (
            line.configured.amount
            for line in estimate.lines
            if line.part == "TPU" and line.configured
        ),
        Decimal(0),
    )
    states = {
        state: _cents(hour.hour - tpu if state in _WITHOUT_TPU else hour.hour, seconds)
        for state, seconds in total.seconds.items()
    }
    whole = sum(states.values(), Decimal(0))
    step = whole / total.steps if total.steps else None
    return Money(hour.hour, states, step and step.quantize(Decimal("1e-9")), hour.complete)


def _cents(hour: Decimal, seconds: float) -> Decimal:
    return (hour * Decimal(f"{seconds:.3f}") / _SECONDS_PER_HOUR).quantize(Decimal("1e-6"))
