"""Find the largest batch that fits, and the largest that needs no recomputation, by compiling."""

from collections.abc import Callable
from dataclasses import dataclass

from tpu_training.compile.result import Compiled

# How far the largest batch found may lie below the true edge.
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


@dataclass(frozen=True)
class Largest:
    """The largest numbers of examples that a replica can process at a time; 0 if not even one.

    Attributes:
        fits: The largest that the compiler accepts.
        plain: The largest for which it computes nothing twice.
    """

    fits: int
    plain: int


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
