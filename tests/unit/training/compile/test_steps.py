"""The trainer's own steps, as programs for a TPU's compiler."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_training.compile.lowering import can_reduce, evaluation_program, train_program
from tpu_training.compile.session import described_data
from tpu_training.errors import InputError
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.compile.answer import Program

pytestmark = pytest.mark.training

REPLICAS = 8
IMAGES = described_data("28x28x1", 10)
TEXTS = described_data("16", 2, 100)
WIDTH = {"U64": 8, "S64": 8, "F32": 4, "S32": 4, "U32": 4, "BF16": 2, "U8": 1}


def module_of(program: Program) -> Any:
    return hlo_pb2.HloModuleProto.FromString(program.hlo)


def instructions(program: Program, opcode: str) -> list[Any]:
    computations = module_of(program).computations
    return [each for one in computations for each in one.instructions if each.opcode == opcode]


@pytest.fixture(scope="module")
def mnist() -> Program:
    return train_program(load_model("mnist_cnn"), Params(), IMAGES, REPLICAS)


@pytest.fixture(scope="module")
def bert() -> Program:
    model = load_model("bert")
    params = build_params({"gradient_accumulation": 2, "layers": 1}, (), (), model.params)
    return train_program(model, params, TEXTS, REPLICAS)


def type_name(shape: Any) -> str:
    return str(
        type(shape)
        .DESCRIPTOR.fields_by_name["element_type"]
        .enum_type.values_by_number[shape.element_type]
        .name
    )


@pytest.mark.parametrize("fixture", ["mnist", "bert"])
def test_each_parameter_of_a_program_has_a_name_a_purpose_and_its_size(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    program = request.getfixturevalue(fixture)
    parameters = module_of(program).host_program_shape.parameters
    sizes = [prod(shape.dimensions) * WIDTH[type_name(shape)] for shape in parameters]
    assert [argument.bytes for argument in program.arguments] == sizes
    assert all(argument.name for argument in program.arguments)
    assert len({argument.name for argument in program.arguments}) == len(sizes)


def test_the_parameters_are_the_weights_the_moments_and_a_replicas_share_of_the_batch(
    mnist: Program,
) -> None:
    bytes_of: Counter[str] = Counter()
    for argument in mnist.arguments:
        bytes_of[argument.kind] += argument.bytes
    weights = bytes_of["weights"]
    assert weights == 4 * (3 * 3 * 16 + 16 + 3 * 3 * 16 * 32 + 32 + 1568 * 128 + 128 + 1290)
    assert bytes_of["optimizer"] == 2 * weights
    assert bytes_of["input"] == 256 // REPLICAS * (28 * 28 + 4)
    names = [argument.name for argument in mnist.arguments]
    assert {"features", "labels", "conv_1/kernel", "first of dense_2/bias", "step"} <= set(names)


def test_moving_statistics_of_batch_normalisation_are_not_counted_as_weights() -> None:
    model = load_model("resnet")
    params = build_params({"depth": 8, "global_batch_size": 8}, (), (), model.params)
    program = evaluation_program(model, params, IMAGES, REPLICAS)
    kinds = {argument.name: argument.kind for argument in program.arguments}
    assert kinds["stem/norm/mean"] == kinds["stem/norm/variance"] == "statistics"
    assert kinds["stem/norm/scale"] == kinds["stem/norm/offset"] == "weights"
    assert kinds["weights"] == "input", "those of the examples"


def test_arithmetic_is_in_bfloat16_as_on_a_tpu_and_float32_when_asked_for(mnist: Program) -> None:
    def types(program: Program) -> set[str]:
        found = instructions(program, "convolution") + instructions(program, "dot")
        return {type_name(each.shape) for each in found}

    params = Params(precision="float32")
    wide = evaluation_program(load_model("mnist_cnn"), params, IMAGES, REPLICAS)
    assert (types(mnist), types(wide)) == ({"BF16"}, {"F32"})


def test_gradients_are_summed_over_all_replicas(mnist: Program) -> None:
    reductions = instructions(mnist, "all-reduce")
    if not can_reduce():
        assert (mnist.replicas, reductions) == (1, [])
        return
    assert mnist.replicas == REPLICAS
    assert not any(each.replica_groups for each in reductions), "an empty list means all of them"
    weights = [each for each in mnist.arguments if each.kind == "weights"]
    assert len(reductions) == len(weights)


@pytest.mark.parametrize("fixture", ["mnist", "bert"])
def test_random_numbers_come_from_the_tpus_own_generator(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    generators = instructions(request.getfixturevalue(fixture), "rng-bit-generator")
    assert generators
    assert {each.rng_algorithm for each in generators} == {0}
    assert {tuple(each.shape.tuple_shapes[0].dimensions) for each in generators} == {(2,)}


@pytest.mark.parametrize("fixture", ["mnist", "bert"])
def test_no_two_instructions_of_a_program_have_the_same_number_and_operands_come_first(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    seen: set[int] = set()
    for computation in module_of(request.getfixturevalue(fixture)).computations:
        inside: set[int] = set()
        for each in computation.instructions:
            assert each.id not in seen
            assert set(each.operand_ids) <= inside
            inside.add(each.id)
            seen.add(each.id)


def test_layers_and_their_gradients_name_the_line_of_the_model(mnist: Program) -> None:
    lines = Counter(
        f"{each.metadata.source_file}: {line_at(each.metadata)}"
        for each in instructions(mnist, "convolution")
    )
    network = "tpu_training/models/networks.py"
    # The first layer needs no gradient of its images, but TensorFlow makes one of their cast.
    assert lines == {
        f"{network}: x = tf.nn.relu(_halve(self.conv_1(x)))": 3,
        f"{network}: x = tf.nn.relu(_halve(self.conv_2(x)))": 3,
    }


def line_at(metadata: Any) -> str:
    import tpu_training

    path = Path(tpu_training.__file__).parents[1] / str(metadata.source_file)
    return path.read_text().splitlines()[int(metadata.source_line) - 1].strip()


def test_the_whole_of_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="--global_batch_size=100 is not divisible by the 8"):
        train_program(load_model("mnist_cnn"), Params(global_batch_size=100), IMAGES, REPLICAS)
