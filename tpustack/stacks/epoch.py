"""What an epoch of a stack's training takes and costs at least."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from infra.cost import Estimate, dollars
from infra.settings import StackSettings
from tpustack.stacks.compiled import answer_of, asking

if TYPE_CHECKING:
    from tpu_training.compile import Manifest

_SECONDS_PER_HOUR = 3600
# An epoch may cost less than a cent.
_PLACES = 4


@dataclass(frozen=True)
class EpochCost:
    """A lower bound: no run is faster. `dollars` are those of the whole stack in that time."""

    examples: int
    seconds: float
    limit: str
    compiler: str
    dollars: Decimal

    def __str__(self) -> str:
        """Format it for people."""
        return (
            f"An epoch of {self.examples:,} examples takes at least {self.seconds:.3g} s and costs "
            f"at least {dollars(self.dollars, _PLACES)} (bound by {self.limit}, compiled by "
            f"{self.compiler}, not measured; start, input and evaluation come on top)."
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "kind": "bound",
            "examples": self.examples,
            "seconds": self.seconds,
            "dollars": f"{self.dollars:f}",
        }


def epoch_cost(
    settings: StackSettings, manifest: Manifest | None, estimate: Estimate
) -> EpochCost | None:
    """Return it if `tpu-training compile` was asked for the stack's job; compiles nothing."""
    answer = answer_of(settings, manifest)
    if manifest is None or answer is None or answer.train.costs is None:
        return None
    from tpu_training.compile.bounds import bound, epoch

    least = bound(answer.train.costs, answer.facts)
    examples = manifest.split("train").examples
    seconds = epoch(least, answer.global_batch_size, examples, answer.facts).seconds
    hours = Decimal(seconds) / _SECONDS_PER_HOUR
    cost = estimate.configured.hour * hours
    return EpochCost(examples, seconds, least.limit, answer.train.compiler, cost)


def epoch_line(
    settings: StackSettings, manifest: Manifest | None, found: EpochCost | None
) -> str | None:
    """Return the line for people; how to find it out if only that is missing, else None."""
    if found is not None:
        return str(found)
    if manifest is None:
        return None
    return f"What an epoch costs at least is not known here: `{asking(settings)}` finds it out."
