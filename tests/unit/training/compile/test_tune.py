"""What `tpu-training tune` proposes, from a compiler that plays Google's."""

from __future__ import annotations

from tpu_training.compile.answer import Compiled, Costs, Topology, tpus
from tpu_training.compile.session import Advice, advise
from tpu_training.models.params import Params

V3 = tpus()["v3-8"]


def advice(params: Params, most: int, plain: int, fixed_bytes: float = 0) -> dict[str, Advice]:
    """Advice where `most` examples fit, and `plain` of them without recomputation."""

    def compile_as(part: int, accumulation: int, precision: str) -> Compiled:
        slow = 2 if precision == "float32" else 1
        costs = Costs(0, slow * (fixed_bytes + part * 450e6), 0, (), 0, int(part > plain))
        fits = part <= most
        return Compiled(
            "train",
            Topology(V3.name, V3.topology),
            "libtpu 9",
            part << 30,
            most << 30,
            (),
            (),
            costs if fits else None,
            None,
            None if fits else "out of memory",
        )

    return {one.name: one for one in advise(params, V3, compile_as)}


def test_a_recipe_that_fits_is_left_as_it_is() -> None:
    found = advice(Params(global_batch_size=1024), 500, 400)
    assert not any(one.changes for one in found.values())
    assert "up to 3,200 fits" in found["global_batch_size"].reason


def test_a_batch_that_does_not_fit_is_split_into_few_parts_that_recompute_nothing() -> None:
    found = advice(Params(global_batch_size=1024), 70, 40)
    assert found["gradient_accumulation"].value == "4"
    assert "each of 4 parts of 32 examples needs 32.00 GiB of 70.00 GiB" in (
        found["gradient_accumulation"].reason
    )
    assert found["global_batch_size"].value == "1024"


def test_parts_that_nothing_needs_are_joined() -> None:
    found = advice(Params(global_batch_size=1024, gradient_accumulation=8), 500, 400)
    assert (found["gradient_accumulation"].value, found["gradient_accumulation"].given) == (
        "1",
        "8",
    )


def test_where_recomputation_cannot_be_avoided_the_fewest_parts_that_fit_are_taken() -> None:
    found = advice(Params(global_batch_size=1024), 70, 0)
    assert found["gradient_accumulation"].value == "2"
    assert "computed twice" in found["gradient_accumulation"].reason


def test_a_model_of_which_no_example_fits_is_told_so() -> None:
    found = advice(Params(global_batch_size=1024), 0, 0)
    assert "choose a larger TPU type" in found["gradient_accumulation"].reason


def test_float32_is_replaced_where_bfloat16_is_faster() -> None:
    found = advice(Params(global_batch_size=64, precision="float32"), 500, 400)
    assert found["precision"].value == "bfloat16"
    assert "8 ms in bfloat16, 16 ms in float32" in found["precision"].reason


def test_a_larger_batch_is_proposed_where_it_saves_time_with_a_word_on_the_learning_rate() -> None:
    found = advice(Params(global_batch_size=64), 500, 400, fixed_bytes=450e6 * 8)
    assert 0.99 * 3200 <= int(found["global_batch_size"].value) <= 3200
    assert "lr-range-test" in found["global_batch_size"].reason
