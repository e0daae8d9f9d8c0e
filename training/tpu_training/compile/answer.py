"""What is known of a step on one TPU type, and the JSON that other programs read."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from tpu_training.compile.result import Compiled, Costs, Largest
from tpu_training.compile.tpus import (
    Price,
    Tpu,
    bound,
    epoch,
    estimated_seconds,
    is_below_bound,
    tpus,
)

# What stands behind a figure: arithmetic that holds for every program with these counts, the
# compiler's word on its own program, the compiler's cost model.
BOUND, COMPILED, ESTIMATE = "bound", "compiled", "estimate"


@dataclass(frozen=True)
class Answer:
    """The compiled facts of a step.

    Attributes:
        tpu: The TPU type's name.
        replicas: How many replicas share a batch.
        part_batch_size: Examples that a replica processes at a time; 0 for a program in a file.
        accumulation: Parts of a replica's share of a batch.
        train: The step, with `estimate` if code was generated.
        evaluation: The step of the evaluation.
        largest: The largest `part_batch_size`, if it was searched.
    """

    tpu: str
    replicas: int
    part_batch_size: int
    accumulation: int
    train: Compiled
    evaluation: Compiled | None = None
    largest: Largest | None = None

    @property
    def facts(self) -> Tpu:
        """The TPU type."""
        return tpus()[self.tpu]

    @property
    def global_batch_size(self) -> int:
        """Examples of a step over all replicas."""
        return self.whole(self.part_batch_size)

    @property
    def fits(self) -> bool:
        """Whether everything that was compiled fits into memory."""
        return self.train.fits and (self.evaluation is None or self.evaluation.fits)

    def whole(self, part: int) -> int:
        """Return the global batch of which each replica processes `part` examples at a time."""
        return part * self.accumulation * self.replicas

    def as_json(self, examples: int | None = None) -> dict[str, Any]:
        """Return all figures; those of an epoch if its number of `examples` is known."""
        costs = self.train.costs
        return {
            "tpu": self.tpu,
            "replicas": self.replicas,
            "global_batch_size": self.global_batch_size or None,
            "part_batch_size": self.part_batch_size or None,
            "fits": self.fits,
            "error": self.train.error or (self.evaluation and self.evaluation.error),
            "memory": _memory(self.train),
            "evaluation_memory": self.evaluation and _memory(self.evaluation),
            "largest": self.largest and self._largest(self.largest),
            "step": costs and _step(costs),
            "padding": costs and _padding(costs),
            "bound": costs and {"kind": BOUND, **dataclasses.asdict(bound(costs, self.facts))},
            "estimate": self._estimate(),
            "epoch": self._epoch(examples),
            "peaks": {
                "flops_per_second": self.facts.peak_flops,
                "hbm_bytes_per_second": self.facts.hbm_bandwidth,
                "link_bytes_per_second": self.facts.link_bandwidth,
                "sources": self.facts.sources,
            },
        }

    def _largest(self, largest: Largest) -> dict[str, Any]:
        return {
            "kind": COMPILED,
            "global_batch_size": self.whole(largest.fits),
            "without_recomputation": self.whole(largest.plain),
        }

    def _estimate(self) -> dict[str, Any] | None:
        seconds = estimated_seconds(self.train, self.facts)
        below = is_below_bound(self.train, self.facts)
        if seconds is None:
            return None
        return {"kind": ESTIMATE, "seconds": seconds, "below_bound": below}

    def _epoch(self, examples: int | None) -> dict[str, Any] | None:
        costs = self.train.costs
        if costs is None or not examples or not self.part_batch_size:
            return None
        found = epoch(bound(costs, self.facts), self.global_batch_size, examples, self.facts)
        return {
            "kind": BOUND,
            "examples": examples,
            "hours": found.seconds / 3600,
            "on_demand_usd": found.on_demand,
            "spot_usd": found.spot,
            "on_demand_price": _price(self.facts.on_demand),
            "spot_price": _price(self.facts.spot),
        }


def _memory(compiled: Compiled) -> dict[str, Any]:
    return {
        "kind": COMPILED,
        "compiler": compiled.compiler,
        "needed_bytes": compiled.needed_bytes,
        "limit_bytes": compiled.limit_bytes,
        "usage": [dataclasses.asdict(usage) for usage in compiled.usage],
        "buffers": [dataclasses.asdict(buffer) for buffer in compiled.buffers],
    }


def _step(costs: Costs) -> dict[str, Any]:
    return {
        "kind": COMPILED,
        "flops": costs.flops,
        "hbm_bytes": costs.hbm_bytes,
        "collective_bytes": costs.collective_bytes,
        "recomputed_instructions": costs.remat_instructions,
    }


def _padding(costs: Costs) -> dict[str, Any]:
    return {
        "kind": COMPILED,
        "bytes": costs.padding_bytes,
        "part": costs.padding_bytes / costs.hbm_bytes if costs.hbm_bytes else 0.0,
        "causes": [dataclasses.asdict(cause) for cause in costs.padding],
    }


def _price(price: Price | None) -> dict[str, Any] | None:
    if price is None:
        return None
    return {"usd_an_hour": price.hour, "region": price.region, "source_date": price.date}
