"""How true the answers of `tpu-training compile` are: full compiles and published times."""

from __future__ import annotations

import math

from bench import published
from bench.compiling import Bench, no_cache, recipe
from bench.result import Result
from tpu_training.compile.search import search

_GENERATIONS = ("v2-8", "v3-8", "v4-8", "v5litepod-8", "v5p-8", "v6e-8")
# Code generation for ResNet-50 takes minutes each time.
_GENERATIONS_OF = {"resnet50-imagenet": ("v3-8",)}
# Sizes of whole tiles that are tried, as multiples of the largest batch found.
_EDGE, _NEAR, _TILE = 1.01, 1.04, 8
_RECIPES = ("mnist", "resnet-fashion-mnist", "bert-reviews", "resnet50-imagenet")


def measure() -> list[Result]:
    """Compile recipes and published steps in full, and beyond the largest batch."""
    with no_cache():
        results = [*(_difference(name) for name in _RECIPES), _edge()]
    return [*results, *_published()]


def _difference(name: str) -> Result:
    """Compare what the quick answer says is needed with the account of the finished program.

    The quick answer is read from the same files in a full compile, before code is generated.
    """
    found = 0.0
    for tpu in _GENERATIONS_OF.get(name, _GENERATIONS):
        full = Bench(tpu, recipe(name)).step(full=True)
        assert full.estimate
        found = max(found, abs(full.needed_bytes / full.estimate.needed_bytes - 1))
    return Result(f"compiled: memory, quick against full, {name}", found, "part", 0.05)


def _edge() -> Result:
    """Tell by how much a larger batch that fits, of those near it, exceeds the largest found."""
    job = Bench("v3-8", recipe("resnet50-imagenet"))
    largest = search(job.step, job.part).fits
    first = math.ceil(largest * _EDGE)
    near = range(-(-first // _TILE) * _TILE, int(largest * _NEAR), _TILE)
    beyond = [size for size in near if job.step(size).fits]
    above = max(beyond, default=largest) / largest - 1
    return Result("compiled: larger batch that fits, ResNet-50 on v3", above, "part", 0.01)


def _published() -> list[Result]:
    found = []
    for one in published.compare(published.compile_all()):
        ratio = one.bound / one.published
        found.append(Result(f"compiled: bound ÷ published, {one.name}", ratio, "ratio", 1.0))
        factor = max(one.estimate / one.published, one.published / one.estimate)
        goal = 2.0 if one.close else None
        found.append(Result(f"compiled: estimate, factor off, {one.name}", factor, "ratio", goal))
    return found
