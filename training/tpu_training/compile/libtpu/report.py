"""Put together what the compiler says, from its dump and its cost analysis."""

from collections.abc import Mapping
from typing import Any

from tpu_training.compile.libtpu.buffers import parse_allocations, parse_peak
from tpu_training.compile.libtpu.costs import count_costs, count_custom_calls, count_cycles
from tpu_training.compile.libtpu.dump import Dump
from tpu_training.compile.libtpu.hlo.module import parse_module
from tpu_training.compile.libtpu.hlo.origin import Origins
from tpu_training.compile.libtpu.memory import largest_buffers, needed_bytes, usage
from tpu_training.compile.result import Compiled, Estimate, Program, Topology


def read_report(
    dump: Dump,
    program: Program,
    topology: Topology,
    compiler: str,
    limit_bytes: int,
    error: str | None = None,
) -> Compiled:
    """Return the answer without an estimate; `error` says that memory does not suffice.

    libtpu 0.0.21 says so only minutes after it has dumped how much is needed: then that decides.

    Raises:
        ValueError: The dump is not as this module knows it.
    """
    module = parse_module(dump.optimized())
    names = [argument.name for argument in program.arguments]
    file = program.name if program.format == "mlir" else ""
    origins = Origins(module, program.sources, names, file)
    allocations = parse_allocations(dump.buffers())
    if not allocations:
        raise ValueError("no buffer assignment")
    needed = needed_bytes(allocations)
    if needed > limit_bytes and error is None:
        error = f"needs {needed / 2**30:.2f} GiB of {limit_bytes / 2**30:.2f} GiB"
    peak = parse_peak((dump.live_ranges(), dump.buffers()))
    return Compiled(
        program=program.name,
        topology=topology,
        compiler=compiler,
        needed_bytes=needed,
        limit_bytes=limit_bytes,
        usage=usage(allocations, program.arguments),
        buffers=largest_buffers(allocations, peak, program.arguments, origins.of),
        costs=None if error else count_costs(module, origins),
        error=error,
    )


def read_estimate(dump: Dump, costs: Mapping[str, Any], needed_bytes: int) -> Estimate:
    """Return the compiler's own numbers of the finished program, and the memory that it needs."""
    module = parse_module(dump.generated() or dump.optimized())
    missing = count_custom_calls(module)
    return Estimate(
        cycles=count_cycles(module),
        flops=costs["flops"] + missing,
        bytes_accessed=costs["bytes accessed"],
        optimal_seconds=costs["optimal_seconds"] + missing,
        needed_bytes=needed_bytes,
    )
