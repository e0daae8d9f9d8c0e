"""TPU types: sizes, public peaks and prices, and the least time and price of a step on them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tpu_training.compile.result import Compiled, Costs
from tpu_training.models.params import suggest

_FILE = Path(__file__).parent / "tpus.json"
# libtpu's topologies have three dimensions.
_DIMENSIONS = 3


@dataclass(frozen=True)
class Price:
    """The lowest list price of an hour in US dollars, where it is asked, and the source's date."""

    hour: float
    region: str
    date: str


@dataclass(frozen=True)
class Tpu:
    """A TPU type; rates are those of one replica at its best, as Google publishes them.

    Attributes:
        topology: libtpu's name, as v3:2x2x1.
        replicas: How many devices, and so replicas, it is to a program.
        peak_flops: bfloat16 operations per second.
        hbm_bandwidth: Bytes per second of memory.
        link_bandwidth: Bytes per second that a chip sends to its neighbours; None where Google does
            not publish it.
        clock: Cycles per second, as the peak and the matrix units imply.
        sources: Where the rates come from, and when they were read.
    """

    name: str
    family: str
    topology: str
    chips: int
    hosts: int
    replicas: int
    peak_flops: float
    hbm_bandwidth: float
    link_bandwidth: float | None
    clock: float
    on_demand: Price | None
    spot: Price | None
    sources: tuple[str, ...]


@cache
def tpus() -> Mapping[str, Tpu]:
    """Return all TPU types by name."""
    content = json.loads(_FILE.read_text(encoding="utf-8"))
    return {
        name: _tpu(name, facts, content["chips"][facts["family"]])
        for name, facts in content["types"].items()
    }


def unknown_tpu(flag: str, name: str) -> str:
    """Return what is wrong with a type that does not exist."""
    known = ", ".join(list(_smallest()))
    hint = suggest(name, tpus()).replace("; see --help for all names", "")
    return f"--{flag}={name}: no such TPU type{hint}; the smallest of each generation are {known}"


def _smallest() -> dict[str, str]:
    """Return the first type of each generation, with its generation."""
    first: dict[str, str] = {}
    for tpu in tpus().values():
        first.setdefault(tpu.family, tpu.name)
    return {name: family for family, name in first.items()}


def _tpu(name: str, facts: Mapping[str, Any], chip: Mapping[str, Any]) -> Tpu:
    devices = chip["devices"]
    links = chip["iciGbps"]
    sides = facts["topology"].split("x")
    sides += ["1"] * (_DIMENSIONS - len(sides))
    return Tpu(
        name=name,
        family=facts["family"],
        topology=f"{facts['family']}:{'x'.join(sides)}",
        chips=facts["chips"],
        hosts=facts["hosts"],
        replicas=facts["chips"] * devices,
        peak_flops=chip["peakTflops"] * 1e12 / devices,
        hbm_bandwidth=chip["hbmGbps"] * 1e9 / devices,
        link_bandwidth=links and links * 1e9 / 2,
        clock=chip["clockMhz"] * 1e6,
        on_demand=facts["onDemand"] and Price(*facts["onDemand"]),
        spot=facts["spot"] and Price(*facts["spot"]),
        sources=tuple(chip["sources"]),
    )


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
    """Return whether the compiler's estimate is below the least time of a step.

    Its cycles are those of computations. Copies from HBM into the chip's own memory, which overlap
    them (copy-start and copy-done), have none: in a small program that reads its data once
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
