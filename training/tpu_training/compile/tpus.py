"""TPU types: sizes, public peaks and prices, from tpus.json. Loads no TensorFlow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
