"""Searches by compiling: the largest batch that fits, and parameters that suit a TPU type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpu_training.compile.result import Compiled, Largest
from tpu_training.compile.table import milliseconds, size
from tpu_training.compile.tpus import Tpu, bound
from tpu_training.models.params import Params

# How far the largest batch found may be below the true edge.
_TOLERANCE = 0.01
# Examples of one replica at a time: more than any model takes.
_MOST = 1 << 20
# Tiles of memory hold as many rows.
_TILE = 8
# Steps away from a guess, as parts of it: the first one from a size that memory foretells, the
# first one beyond the sizes that need no recomputation, and how much longer each next one is.
_NEAR, _FAR, _LONGER = 0.02, 0.25, 4
# How many sizes above the edge are tried.
_AHEAD = 3
# A guess from a size this many times smaller is made once more from the size that was guessed.
_DISTANT = 4
# What needs as much memory for a batch of any size.
_FIXED = ("weights", "optimizer", "statistics")

Compile = Callable[[int], Compiled]
"""Compiles the step for a number of examples that a replica processes at a time."""


def search(compile_at: Compile, start: int) -> Largest:
    """Search the sizes, beginning with what the memory for `start` examples foretells.

    Without recomputation the need of memory grows with the batch, so that few sizes must be tried.
    Beyond, the compiler computes results again rather than keep them: there the steps are long, and
    the last gap is halved. A larger batch may even need less there, ResNet-50's 1,080 on v3 less
    than 1,064, which is refused: so a few sizes above the edge are tried, too.
    """
    tried: dict[int, Compiled] = {}

    def at(examples: int) -> Compiled:
        if examples not in tried:
            tried[examples] = compile_at(examples)
        return tried[examples]

    def plain(examples: int) -> bool:
        costs = at(examples).costs
        return costs is not None and costs.remat_instructions == 0

    guess = _foretold(at(start), start)
    if guess > start * _DISTANT:
        guess = _foretold(at(guess), guess)
    most_plain = _edge(plain, *_bracket(plain, guess, _NEAR))
    fitting = [size for size, compiled in tried.items() if compiled.fits]
    if not fitting:
        return Largest(0, 0)

    def fits(examples: int) -> bool:
        return at(examples).fits

    low = max(fitting)
    refused = [size for size in tried if size > low]
    bracket = (low, min(refused)) if refused else _bracket(fits, low, _FAR)
    return Largest(_beyond(fits, _edge(fits, *bracket)), most_plain)


def _beyond(accepts: Callable[[int], bool], size: int) -> int:
    """Return a size of which a few larger ones, each by the tolerance, are all refused."""
    ahead = 1
    while ahead <= _AHEAD:
        larger = _above(size, _TOLERANCE * ahead)
        size, ahead = (larger, 1) if larger <= _MOST and accepts(larger) else (size, ahead + 1)
    return size


def _foretold(compiled: Compiled, size: int) -> int:
    """Return the size that would fill memory if each example needed as much as with `size`."""
    fixed = sum(usage.bytes for usage in compiled.usage if usage.kind in _FIXED)
    room, needed = compiled.limit_bytes - fixed, compiled.needed_bytes - fixed
    if room <= 0 or needed <= 0:
        return size
    return max(1, min(_whole_tiles(int(room / needed * size)), _MOST))


def _bracket(accepts: Callable[[int], bool], guess: int, step: float) -> tuple[int, int]:
    """Return a number that is accepted, or 0, and a larger one that is not; both near `guess`."""
    if accepts(guess):
        low, high = guess, _above(guess, step)
        while high <= _MOST and accepts(high):
            step = min(step * _LONGER, 1.0)
            low, high = high, _above(high, step)
        return low, min(high, _MOST + 1)
    low, high = _below(guess, step), guess
    while low and not accepts(low):
        step = min(step * _LONGER, 0.5)
        low, high = _below(low, step), low
    return low, high


def _edge(accepts: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest number from `low` to below `high` that is accepted, to the tolerance."""
    while high - low > max(1, int(low * _TOLERANCE)):
        middle = _middle(low, high)
        low, high = (middle, high) if accepts(middle) else (low, middle)
    return low


def _above(size: int, step: float) -> int:
    return max(size + 1, _whole_tiles(int(size * (1 + step))))


def _below(size: int, step: float) -> int:
    return min(size - 1, _whole_tiles(int(size * (1 - step))))


def _middle(low: int, high: int) -> int:
    """Return a number between, one that fills whole tiles of memory where there is one."""
    middle = (low + high) // 2
    tile = _whole_tiles(middle)
    return tile if tile > low else middle


def _whole_tiles(size: int) -> int:
    """Return the largest number up to `size` that fills whole tiles of memory; else `size`."""
    return size // _TILE * _TILE or size


# The parameters of a recipe that a TPU type asks for, with the compiled facts behind them.
#
# Only what compiled facts decide is proposed. They say nothing about what a model learns.

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
    given_costs, most_costs = at(now, parts).costs, at(most, parts).costs if most else None
    if given_costs is None or most_costs is None or most <= now:
        return keep
    before, after = bound(given_costs, tpu).seconds / now, bound(most_costs, tpu).seconds / most
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
