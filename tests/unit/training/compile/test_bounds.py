"""Facts about TPU types, and the bounds that follow from them."""

from __future__ import annotations

import pytest

from tpu_training.compile.answer import (
    COMPUTE,
    LINKS,
    MEMORY,
    Compiled,
    Costs,
    Estimate,
    Largest,
    Topology,
    bound,
    epoch,
    estimated_seconds,
    tpus,
    unknown_tpu,
)
from tpu_training.compile.session import search

NOTHING = Costs(0, 0, 0, (), 0, 0)


def costs(flops: float = 0, hbm: float = 0, collective: int = 0, remat: int = 0) -> Costs:
    return Costs(flops, hbm, 0, (), collective, remat)


def compiled(
    needed: int = 1, limit: int = 2, remat: int = 0, cycles: int | None = None
) -> Compiled:
    fits = needed <= limit
    return Compiled(
        "train",
        Topology("v3-8", "v3:2x2x1"),
        "libtpu 0",
        needed,
        limit,
        (),
        (),
        costs(remat=remat) if fits else None,
        None if cycles is None else Estimate(cycles, 0),
        None if fits else "out of memory",
    )


@pytest.mark.parametrize(
    ("name", "replicas", "topology"),
    [
        ("v2-8", 8, "v2:2x2x1"),
        ("v3-32", 32, "v3:4x4x1"),
        ("v4-8", 4, "v4:2x2x1"),
        ("v5litepod-8", 8, "v5e:2x4x1"),
        ("v5p-8", 4, "v5p:2x2x1"),
        ("v6e-8", 8, "v6e:2x4x1"),
        ("ct6e-standard-4t", 4, "v6e:2x2x1"),
        ("tpu7x-standard-4t", 8, "tpu7x:2x2x1"),
        ("tpu7x-standard-4t:2x2x2", 16, "tpu7x:2x2x2"),
    ],
)
def test_a_type_has_the_replicas_and_the_topology_of_its_generation(
    name: str, replicas: int, topology: str
) -> None:
    assert (tpus()[name].replicas, tpus()[name].topology) == (replicas, topology)


def test_the_rates_of_a_replica_are_its_share_of_the_chip() -> None:
    assert tpus()["v3-8"].peak_flops == 61.5e12
    assert tpus()["v3-8"].hbm_bandwidth == 450e9
    assert tpus()["v4-8"].peak_flops == 275e12
    assert tpus()["tpu7x-standard-4t"].peak_flops == 1153.5e12
    assert tpus()["tpu7x-standard-4t"].hbm_bandwidth == 3690e9


def test_an_unknown_type_is_named_with_the_nearest_one() -> None:
    message = unknown_tpu("tpu", "v3_8")
    assert message.startswith("--tpu=v3_8: unknown TPU type; did you mean v3-8?")
    assert "v5litepod-1" in message
    assert message.endswith("v6e-1, tpu7x-standard-4t")
    assert "--help" not in unknown_tpu("tpu", "nonsense")


def test_a_step_takes_at_least_as_long_as_its_slowest_part() -> None:
    # ResNet-50 at 128 images a core: the figures of a compiled step.
    found = bound(costs(flops=3.08e12, hbm=34.7e9), tpus()["v3-8"])
    assert found.seconds == pytest.approx(0.077, rel=0.01)
    assert found.limit == MEMORY
    assert found.utilisation == pytest.approx(0.65, abs=0.01)
    assert bound(costs(flops=3.08e12, hbm=34.5e9), tpus()["v2-8"]).limit == COMPUTE


def test_reductions_count_where_the_speed_of_the_links_is_published() -> None:
    reducing = costs(hbm=1, collective=1 << 30)
    assert bound(reducing, tpus()["v5litepod-8"]).limit == LINKS
    assert bound(reducing, tpus()["v5litepod-8"]).seconds == pytest.approx(
        2 * 7 / 8 * 2**30 / 200e9
    )
    assert LINKS not in bound(reducing, tpus()["v3-8"]).parts
    assert bound(reducing, tpus()["v5litepod-1"]).limit == MEMORY


def test_an_epoch_costs_the_time_of_its_steps_at_the_lowest_price() -> None:
    tpu = tpus()["v3-8"]
    step = bound(costs(hbm=0.077 * 450e9), tpu)
    found = epoch(step, 1024, 1_281_167, tpu)
    assert found.seconds == pytest.approx(96.3, abs=0.1)
    assert found.on_demand == pytest.approx(0.214, abs=0.001)
    assert found.spot == pytest.approx(0.055, abs=0.001)


def test_a_step_without_work_has_no_utilisation() -> None:
    assert bound(NOTHING, tpus()["v2-8"]).utilisation == 0


def test_the_estimate_is_the_compilers_cycles_at_the_clock_of_the_peak() -> None:
    # 61.5 TFLOP/s of two matrix units of 128 x 128 that multiply and add: 938 MHz.
    assert estimated_seconds(compiled(cycles=938_000_000), tpus()["v3-8"]) == pytest.approx(1)
    assert estimated_seconds(compiled(), tpus()["v3-8"]) is None


def refuse_above(most: int, plain: int, asked: list[int]) -> Largest:
    def compile_at(examples: int) -> Compiled:
        asked.append(examples)
        return compiled(examples, most, remat=int(examples > plain))

    return search(compile_at, 128)


@pytest.mark.parametrize(("most", "plain"), [(1300, 400), (70, 50), (128, 128), (5000, 4999)])
def test_the_search_ends_within_one_percent_below_the_edge(most: int, plain: int) -> None:
    found = refuse_above(most, plain, [])
    assert most * 0.99 <= found.fits <= most
    assert plain * 0.99 <= found.plain <= plain


def test_nothing_is_compiled_twice_and_little_at_all() -> None:
    asked: list[int] = []
    refuse_above(1300, 400, asked)
    assert len(asked) == len(set(asked)) <= 22


@pytest.mark.parametrize(("needed", "most"), [(4567, 15851), (12, 15851), (40000, 15851)])
def test_memory_linear_in_the_batch_takes_few_compilations(needed: int, most: int) -> None:
    asked: list[int] = []

    def compile_at(examples: int) -> Compiled:
        asked.append(examples)
        return compiled(int(needed * examples / 128 * 1000), most * 1000)

    edge = most * 128 // needed
    assert min(edge * 0.99, edge - 1) <= search(compile_at, 128).fits <= edge
    assert len(asked) <= 11


@pytest.mark.parametrize("start", [1, 8, 128, 4096])
@pytest.mark.parametrize(("most", "plain"), [(1080, 433), (7, 3), (300_000, 299_000)])
def test_the_search_ends_at_the_same_edges_from_any_start(
    start: int, most: int, plain: int
) -> None:
    def compile_at(examples: int) -> Compiled:
        # Recomputation keeps the need below the limit; what is refused needs more.
        grown = min(examples, plain) + max(0, examples - most)
        return compiled(grown, plain, remat=int(examples > plain))

    found = search(compile_at, start)
    assert most * 0.99 <= found.fits <= most
    assert plain * 0.99 <= found.plain <= plain


def test_a_model_of_which_not_one_example_fits_has_no_largest_batch() -> None:
    assert refuse_above(0, 0, []) == Largest(0, 0)


def test_a_size_that_fits_beyond_one_that_does_not_is_found() -> None:
    def compile_at(examples: int) -> Compiled:
        # As ResNet-50 on v3.
        fits = examples <= 1056 or examples == 1080
        return compiled(14 if fits else 16, 15, remat=int(examples > 432))

    assert search(compile_at, 128).fits == 1080


def test_a_larger_batch_that_needs_less_memory_does_not_end_the_search() -> None:
    def compile_at(examples: int) -> Compiled:
        needed = {512: 14, 544: 13}.get(examples, examples // 40)
        return compiled(needed, 15)

    assert search(compile_at, 512).fits >= 600
