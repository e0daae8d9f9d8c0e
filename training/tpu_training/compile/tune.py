"""Propose the parameters of a recipe that a TPU type asks for, with the compiled facts behind them.

Only what compiled facts decide is proposed. They say nothing about what a model learns.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpu_training.compile.bounds import bound
from tpu_training.compile.result import Compiled
from tpu_training.compile.search import Largest, search
from tpu_training.compile.table import milliseconds, size
from tpu_training.compile.tpus import Tpu
from tpu_training.models.params import Params

# A gain by which a proposal is worth another batch size, and with it another learning rate.
_WORTH = 0.05
_FAST, _EXACT = "bfloat16", "float32"

CompileAs = Callable[[int, int, str], Compiled]
"""Compiles the step: examples of a replica at a time, accumulation, precision."""


@dataclass(frozen=True)
class Advice:
    """A parameter's value and why; `given` is the recipe's."""

    name: str
    value: str
    given: str
    reason: str

    @property
    def changes(self) -> bool:
        """Whether it differs from the recipe."""
        return self.value != self.given


def advise(params: Params, tpu: Tpu, compile_as: CompileAs) -> Iterator[Advice]:
    """Yield advice on precision, accumulation and batch size."""
    share = params.replica_batch_size(tpu.replicas)
    given = params.gradient_accumulation
    precision = _precision(params, share // given, given, tpu, compile_as)
    yield precision

    def at(part: int, accumulation: int) -> Compiled:
        return compile_as(part, accumulation, precision.value)

    accumulation = _accumulation(share, given, at)
    yield accumulation
    parts = int(accumulation.value)
    found = search(lambda part: at(part, parts), max(share // parts, 1))
    yield _batch(params, tpu, parts, found, at)


def _precision(
    params: Params, part: int, accumulation: int, tpu: Tpu, compile_as: CompileAs
) -> Advice:
    given = params.precision
    if given != _EXACT:
        reason = "the matrix units take bfloat16; auto is bfloat16 on TPUs"
        return Advice("precision", given, given, reason)
    exact, fast = (compile_as(part, accumulation, kind) for kind in (_EXACT, _FAST))
    if not exact.costs or not fast.costs:
        reason = f"float32 needs {size(exact.needed_bytes)}, bfloat16 {size(fast.needed_bytes)}"
        return Advice("precision", _FAST, given, reason)
    slow, quick = (bound(found, tpu).seconds for found in (exact.costs, fast.costs))
    value = _FAST if quick < slow * (1 - _WORTH) else given
    reason = (
        f"a step takes at least {milliseconds(quick)} in bfloat16, {milliseconds(slow)} in float32"
    )
    return Advice("precision", value, given, reason)


def _accumulation(share: int, given: int, at: Callable[[int, int], Compiled]) -> Advice:
    """Return the fewest parts that need no recomputation; failing that, that fit."""
    fallback: tuple[int, Compiled] | None = None
    for parts in (count for count in range(1, share + 1) if share % count == 0):
        found = at(share // parts, parts)
        if found.costs and found.costs.remat_instructions == 0:
            needs = f"{size(found.needed_bytes)} of {size(found.limit_bytes)}"
            reason = f"{_parts(parts)} of {share // parts} examples needs {needs}"
            reason += " and computes nothing twice"
            return Advice("gradient_accumulation", str(parts), str(given), reason)
        if found.fits and fallback is None:
            fallback = parts, found
    if fallback is None:
        reason = "not even one example a replica at a time fits; choose a larger TPU type"
        return Advice("gradient_accumulation", str(given), str(given), reason)
    parts, found = fallback
    reason = f"{_parts(parts)} of {share // parts} examples fits, with results computed twice"
    return Advice("gradient_accumulation", str(parts), str(given), reason)


def _batch(
    params: Params,
    tpu: Tpu,
    parts: int,
    largest: Largest,
    at: Callable[[int, int], Compiled],
) -> Advice:
    given = params.global_batch_size
    now = given // tpu.replicas // parts
    most = largest.plain or largest.fits
    limit = f"up to {most * parts * tpu.replicas:,} fits without computing anything twice"
    keep = Advice("global_batch_size", str(given), str(given), limit)
    here, there = at(now, parts).costs, at(most, parts).costs if most else None
    if here is None or there is None or most <= now:
        return keep
    before, after = bound(here, tpu).seconds / now, bound(there, tpu).seconds / most
    gain = 1 - after / before
    if gain < _WORTH:
        reason = f"{limit}; that would save {max(gain, 0):.0%} of the least time of an example"
        return Advice("global_batch_size", str(given), str(given), reason)
    value = most * parts * tpu.replicas
    reason = (
        f"the least time of an example falls by {gain:.0%}; a larger batch wants another learning "
        "rate (arXiv:1706.02677 scales it with the batch): see lr-range-test"
    )
    return Advice("global_batch_size", str(value), str(given), reason)


def _parts(parts: int) -> str:
    return "one part" if parts == 1 else f"each of {parts} parts"
