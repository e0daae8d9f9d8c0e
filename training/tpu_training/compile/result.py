"""What is compiled, for which TPU, and what the compiler says about it. Loads no TensorFlow.

Sizes are bytes and times are seconds, all of one core (one PJRT device: on v4 and v5p a core is the
chip's two TensorCores together, "megacore").
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
        sources: "FILE:LINE" by operation name (HLO's op_name). TensorFlow's HLO needs it: there
            each operation comes from TensorFlow's own framework/ops.py.
        partitions: The number of cores among which each replica is divided, as JAX does; the
            program then runs on replicas times partitions cores.
    """

    name: str
    hlo: bytes
    format: Literal["hlo", "mlir"]
    replicas: int = 1
    arguments: tuple[Argument, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
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
    options: Mapping[str, str] = field(default_factory=dict)


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
        bytes: How many of a step's HBM bytes (`Compiled.hbm_bytes`) are padding of this kind.
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
            multiplication and an addition counted as two, counted from the optimized program's
            shapes. Loop bodies count as often as they run where the compiler knows.
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


@dataclass(frozen=True)
class Estimate:
    """The compiler's own numbers, known after code generation (a full compile) only.

    Attributes:
        cycles: The sum over all fusions of the cost model's `estimated_cycles`, loop bodies as
            often as they run. Divided by the clock (the core's public peak by what its matrix
            units do in a cycle) it is a time. None where the program has no such figures.
        flops: The cost analysis' count, which has element-wise operations, too, but loop bodies
            once only.
        bytes_accessed: The cost analysis' count, loop bodies once only. On v5e and later it counts
            VMEM as well as HBM.
        optimal_seconds: The cost analysis' time.
        needed_bytes: What the finished program needs of HBM by its own account, code left out:
            `Compiled.needed_bytes` says it before code is generated.
    """

    cycles: int | None
    flops: float
    bytes_accessed: float
    optimal_seconds: float
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


@dataclass(frozen=True)
class Progress:
    """How far a compilation is.

    Attributes:
        seconds: Since it began.
        known: The answer without `estimate`, as soon as the compiler has written it.
    """

    seconds: float
    known: Compiled | None = None


Watch: TypeAlias = Callable[[Progress], None]
"""Called about twice a second while the compiler works."""
