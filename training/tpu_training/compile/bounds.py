"""What a step takes at least, and what an epoch costs at least: arithmetic on compiled facts."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpu_training.compile.result import Compiled, Costs
from tpu_training.compile.tpus import Price, Tpu

COMPUTE, MEMORY, LINKS = "matrix units", "HBM bandwidth", "links between chips"


@dataclass(frozen=True)
class Bound:
    """The least time of a step: no program does its work faster on this chip.

    Work, memory traffic and reductions may overlap, so the longest of them counts, not the sum.

    Attributes:
        seconds: The least time of a step.
        limit: What takes that long.
        parts: The least time of each part.
        utilisation: The largest part of the chip's peak that a step can reach.
    """

    seconds: float
    limit: str
    parts: Mapping[str, float]
    utilisation: float


@dataclass(frozen=True)
class Epoch:
    """The least time of a number of examples, and what a TPU costs in that time."""

    examples: int
    seconds: float
    on_demand: float | None
    spot: float | None


def bound(costs: Costs, tpu: Tpu) -> Bound:
    """Return the least time of a step with `costs` on `tpu`."""
    parts = {COMPUTE: costs.flops / tpu.peak_flops, MEMORY: costs.hbm_bytes / tpu.hbm_bandwidth}
    if tpu.link_bandwidth:
        # A chip sends at least its share of the sum, once to add it up and once to spread it.
        sent = 2 * (tpu.chips - 1) / tpu.chips * costs.collective_bytes
        parts[LINKS] = sent / tpu.link_bandwidth
    limit = max(parts, key=lambda part: parts[part])
    seconds = parts[limit]
    return Bound(seconds, limit, parts, parts[COMPUTE] / seconds if seconds else 0.0)


def estimated_seconds(compiled: Compiled, tpu: Tpu) -> float | None:
    """Return the compiler's own estimate of a step; None without code generation."""
    if compiled.estimate is None or compiled.estimate.cycles is None:
        return None
    return compiled.estimate.cycles / tpu.clock


def is_below_bound(compiled: Compiled, tpu: Tpu) -> bool:
    """Return whether the compiler's estimate lies below the least time of a step.

    Its cycles are those of computations. Copies from HBM into the chip's own memory, which run
    beside them (copy-start and copy-done), have none: in a small program that reads its data once
    they take longest.
    """
    seconds = estimated_seconds(compiled, tpu)
    costs = compiled.costs
    return costs is not None and seconds is not None and seconds < bound(costs, tpu).seconds


def epoch(step: Bound, batch_size: int, examples: int, tpu: Tpu) -> Epoch:
    """Return the least time and price of `examples` in steps of `batch_size`."""
    seconds = examples / batch_size * step.seconds
    return Epoch(examples, seconds, _dollars(tpu.on_demand, seconds), _dollars(tpu.spot, seconds))


def _dollars(price: Price | None, seconds: float) -> float | None:
    return None if price is None else price.hour * seconds / 3600
