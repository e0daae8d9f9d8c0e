"""What the TPU compiler says of a step on a TPU type, and what follows from it.

Sizes are bytes and times are seconds, all of one core (one PJRT device: on v4 and v5p a core is the
chip's two TensorCores together, "megacore"). Loads no TensorFlow.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tpu_training.models.params import suggest

ArgumentKind: TypeAlias = Literal["weights", "optimizer", "statistics", "input", "other"]
UsageKind: TypeAlias = Literal[ArgumentKind, "activations and temporaries"]


@dataclass(frozen=True)
class Argument:
    """A parameter of a program.

    Attributes:
        name: The variable's or tensor's name.
        kind: What it is for; "statistics" are moving averages and metrics.
        bytes: Its logical size, without the padding of a TPU's memory.
    """

    name: str
    kind: ArgumentKind
    bytes: int


@dataclass(frozen=True)
class Program:
    """A program to compile.

    Attributes:
        name: "train", "evaluate", or the name of the file that it comes from.
        hlo: A serialized HloModuleProto for the format "hlo"; StableHLO as MLIR bytecode or text
            for "mlir".
        replicas: The number of cores that run it together, each with its own data.
        arguments: In the order of the entry computation's parameters. Empty where they are not
            known: then all of them are "other".
        partitions: The number of cores among which each replica is divided, as JAX does; the
            program then runs on replicas times partitions cores.
    """

    name: str
    hlo: bytes
    format: Literal["hlo", "mlir"]
    replicas: int = 1
    arguments: tuple[Argument, ...] = ()
    partitions: int = 1


@dataclass(frozen=True)
class Topology:
    """A TPU as its compiler knows it.

    Attributes:
        accelerator_type: Google's name, "v3-8"; for messages and for libtpu's environment.
        name: libtpu's name, "v3:2x2x1": generation and chips in each dimension.
        options: Options of libtpu's topology, as {"chip_config_name": "megacore"} for v4.
    """

    accelerator_type: str
    name: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """A part of the memory needed: the parameters of one kind, or all temporaries."""

    kind: UsageKind
    bytes: int


@dataclass(frozen=True)
class Buffer:
    """An allocation in HBM at the moment of the greatest need.

    Attributes:
        bytes: What it takes in memory.
        unpadded_bytes: What it would take without tiles: elements times their size.
        shape: As in HLO with its layout, "bf16[128,56,56,256]{0,3,2,1:T(8,128)(2,1)}".
        what: The argument's name, or the instruction's.
        op: The framework's name of the operation, "resnet/block1/conv2d"; "" where there is none.
        where: "FILE:LINE" of the user's code, or "" where it is not known.
    """

    bytes: int
    unpadded_bytes: int
    shape: str
    what: str
    op: str = ""
    where: str = ""


@dataclass(frozen=True)
class Padding:
    """A dimension that the tiles of a TPU's memory make longer.

    Attributes:
        size: As the program has it, for example 100.
        padded: As memory has it, for example 104.
        bytes: How many of a step's HBM bytes (`Costs.hbm_bytes`) are padding of this kind.
        op: The operation that moves most of it; "" where it has no name.
        where: "FILE:LINE" of that operation, or "".
    """

    size: int
    padded: int
    bytes: int
    op: str = ""
    where: str = ""


@dataclass(frozen=True)
class Costs:
    """What one step costs by the optimized program: counts, no measurement.

    Attributes:
        flops: Floating-point operations of matrix multiplications and convolutions, a
            multiplication and an addition counted as two. Loop bodies count as often as they run,
            where the compiler knows.
        hbm_bytes: Operands and results of the optimized program that are in HBM, tiles included.
        padding_bytes: The part of `hbm_bytes` that is padding of tiles.
        padding: The causes of `padding_bytes`, greatest first.
        collective_bytes: Operands of all-reduce and its kin, each counted once.
        remat_instructions: Instructions that are computed again because memory is short.
    """

    flops: float
    hbm_bytes: float
    padding_bytes: float
    padding: tuple[Padding, ...]
    collective_bytes: int
    remat_instructions: int

    @property
    def padding_part(self) -> float:
        """The part of the traffic that is padding, 0 to 1."""
        return self.padding_bytes / self.hbm_bytes if self.hbm_bytes else 0.0


@dataclass(frozen=True)
class Estimate:
    """The compiler's own numbers, known after code generation (a full compile) only.

    Attributes:
        cycles: The sum over all fusions of the cost model's `estimated_cycles`, loop bodies as
            often as they run. Divided by the clock it is a time. None where the program has no such
            figures.
        needed_bytes: What the finished program needs of HBM by its own account, code left out:
            `Compiled.needed_bytes` says it before code is generated.
    """

    cycles: int | None
    needed_bytes: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a program on a TPU.

    Attributes:
        program: The program's name.
        topology: What it was compiled for.
        compiler: "libtpu 0.0.52".
        needed_bytes: HBM that the program needs: arguments, results that share no memory with
            them, and temporaries. The figure of the compiler's out-of-memory message.
        limit_bytes: HBM that a program may use on this core.
        usage: `needed_bytes` by what uses it, greatest first.
        buffers: The ten largest allocations.
        costs: None where memory does not suffice: then there is no final program.
        estimate: None without code generation.
        error: The compiler's words where memory does not suffice; only how much is needed where
            it was not waited for.
    """

    program: str
    topology: Topology
    compiler: str
    needed_bytes: int
    limit_bytes: int
    usage: tuple[Usage, ...]
    buffers: tuple[Buffer, ...]
    costs: Costs | None = None
    estimate: Estimate | None = None
    error: str | None = None

    @property
    def fits(self) -> bool:
        """Whether the compiler accepts the program."""
        return self.error is None


@dataclass(frozen=True)
class Largest:
    """The largest numbers of examples that a replica can process at a time; 0 if not even one.

    Attributes:
        fits: The largest that the compiler accepts.
        plain: The largest for which it computes nothing twice.
    """

    fits: int
    plain: int


# --- TPU types. tpus.json is written from the catalog (`make catalog`), with its sources and dates.

_FILE = Path(__file__).parent / "tpus.json"


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
        name: Of the Cloud TPU API, or a machine type of Compute Engine; a slice of several machines
            is MACHINE:TOPOLOGY, as tpu7x-standard-4t:2x2x2.
        topology: libtpu's name, as v3:2x2x1.
        tensorflow: Whether TensorFlow can drive it; otherwise JAX runs the trainer.
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
    tensorflow: bool
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
    chips = content["chips"]
    return {n: _tpu(n, facts, chips[facts["family"]]) for n, facts in content["types"].items()}


def unknown_tpu(flag: str, name: str) -> str:
    """Return what is wrong with a type that does not exist."""
    smallest: dict[str, str] = {}
    for tpu in tpus().values():
        smallest.setdefault(tpu.family, tpu.name)
    hint = suggest(name, tpus()).replace("; see --help for all names", "")
    known = ", ".join(smallest.values())
    return f"--{flag}={name}: unknown TPU type{hint}; the smallest of each generation are {known}"


def _tpu(name: str, facts: Mapping[str, Any], chip: Mapping[str, Any]) -> Tpu:
    # The catalog has rates of a chip; on v2 and v3 each of its two cores is a device.
    devices, links, family = chip["devices"], chip["iciGbps"], facts["family"]
    # libtpu's topologies have three dimensions, Google's of some generations two.
    sides = [*facts["topology"].split("x"), "1"][:3]
    return Tpu(
        name=name,
        family=family,
        topology=f"{family}:{'x'.join(sides)}",
        chips=facts["chips"],
        hosts=facts["hosts"],
        tensorflow=facts["tensorflow"],
        replicas=facts["chips"] * devices,
        peak_flops=chip["peakTflops"] * 1e12 / devices,
        hbm_bandwidth=chip["hbmGbps"] * 1e9 / devices,
        # Published for both directions together.
        link_bandwidth=links and links * 1e9 / 2,
        clock=chip["clockMhz"] * 1e6,
        on_demand=facts["onDemand"] and Price(*facts["onDemand"]),
        spot=facts["spot"] and Price(*facts["spot"]),
        sources=tuple(chip["sources"]),
    )


# --- The least time of a step, and the compiler's estimate of it.

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
    """The least time of an epoch, and what a TPU costs in that time, in US dollars."""

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
    seconds, costs = estimated_seconds(compiled, tpu), compiled.costs
    return costs is not None and seconds is not None and seconds < bound(costs, tpu).seconds


def epoch(step: Bound, batch_size: int, examples: int, tpu: Tpu) -> Epoch:
    """Return the least time and price of `examples` in steps of `batch_size`."""
    seconds = examples / batch_size * step.seconds
    on_demand, spot = (
        None if price is None else price.hour * seconds / 3600
        for price in (tpu.on_demand, tpu.spot)
    )
    return Epoch(seconds, on_demand, spot)


# --- The answer.


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
        """Return all figures; docs/sizing.md names the fields and says what stands behind each.

        Args:
            examples: The number of an epoch's examples, if it is known.
        """
        costs, tpu, whole = self.train.costs, self.facts, None
        least = costs and bound(costs, tpu)
        if least and examples and self.part_batch_size:
            whole = epoch(least, self.global_batch_size, examples, tpu)
        return {
            **asdict(self),
            "tpu": asdict(tpu),
            "global_batch_size": self.global_batch_size or None,
            "fits": self.fits,
            "largest": self.largest
            and {
                "global_batch_size": self.whole(self.largest.fits),
                "without_recomputation": self.whole(self.largest.plain),
            },
            "bound": least and asdict(least),
            "estimated_seconds": estimated_seconds(self.train, tpu),
            "below_bound": is_below_bound(self.train, tpu),
            "epoch": whole and asdict(whole),
        }
