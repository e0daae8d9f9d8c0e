"""All that a job does on a TPU, traced for eight cores, with every built-in model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

from tests.unit.training.fake_tpu import bodies_of_loops, bytes_that_leave, on_tpu
from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.compile.lowering import accepts
from tpu_training.data.arrays import source_of_arrays
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import training_batches
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.loop.graph import operations
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import BUILT_IN, load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

SMALL = {"resnet": {"depth": 8}, "bert": {"layers": 1}, "mnist_cnn": {}}
SIZES = {"global_batch_size": 16, "evaluation_batch_size": 16}
# Operations of TPUStrategy itself, which only a TPU's own library can compile.
OF_TPUS = {"CrossReplicaSum", "TPUReplicateMetadata"}
# What the host does in a step: get the input of each core, count steps, start the cores' program.
INPUT = {"IteratorGetNext", "Pack", "Max", "Identity", "Const", "Placeholder"}
OF_HOST = INPUT | {"AddV2", "NoOp", "TPUReplicatedInput", "TPUCompilationResult"}
# The clock of the input, in training.
CLOCK = {"Timestamp", "Sub", "AssignAddVariableOp"}
FUNCTION = tf.function
PRODUCTS = {"Conv2D", "MatMul", "BatchMatMulV2"}


@dataclass(frozen=True)
class Traced:
    """A job on eight cores that exist by name only."""

    params: Params
    state: TrainState
    train: tf.Graph
    evaluate: tf.Graph

    @property
    def on_cores(self) -> Iterator[tf.Operation]:
        for graph in (self.train, self.evaluate):
            yield from (operation for operation in operations(graph) if on_tpu(operation))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts") / "data"
    lines = [f"word{number % 7} is {'good' if number % 2 else 'bad'}" for number in range(100)]
    labels = [number % 2 for number in range(100)]
    splits = {"train": (lines[:90], labels[:90]), "test": (lines[90:], labels[90:])}
    store(source_of_arrays("texts", splits, ()), str(folder), Storage())
    return folder


@pytest.fixture(scope="module", params=BUILT_IN)
def traced(request: pytest.FixtureRequest, tpu: Cluster, bars: Path, texts: Path) -> Traced:
    model = load_model(request.param)
    params = build_params({**SIZES, **SMALL[request.param]}, (), (), model.params)
    data = open_data(str(texts if request.param == "bert" else bars))
    state = create_train_state(tpu, model, params, data.manifest, 10)
    return Traced(
        params,
        state,
        body(create_train_loop(tpu, params, state, training_batches(data, tpu, params))),
        evaluation(tpu, params, data, state),
    )


class GraphTraced(Exception):
    """Carries the graph of an evaluation, which can't run without a TPU."""


def evaluation(tpu: Cluster, params: Params, data: DataSet, state: TrainState) -> tf.Graph:
    """The graph of one step of an evaluation."""

    def trace(function: Callable[..., object], **options: object) -> Callable[..., object]:
        compiled = FUNCTION(function, **options)

        def call(*arguments: tf.Tensor) -> object:
            raise GraphTraced(compiled.get_concrete_function(*arguments).graph)

        return call

    evaluate = create_evaluation(tpu, params, data, state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "function", trace)
        with pytest.raises(GraphTraced) as traced:
            evaluate()
    (step,) = bodies_of_loops(traced.value.args[0])
    return step


def body(loop: Callable[..., object]) -> tf.Graph:
    """The graph of one step of a loop."""
    whole = loop.get_concrete_function(tf.TensorSpec((), tf.int32)).graph  # type: ignore[attr-defined]
    (step,) = bodies_of_loops(whole)
    return step


def test_every_operation_of_the_cores_has_a_kernel_for_tpus(traced: Traced) -> None:
    lacking = {operation.type for operation in traced.on_cores if not accepts(operation)}
    assert lacking == OF_TPUS


def test_the_host_does_nothing_in_a_step_but_hand_over_the_input(traced: Traced) -> None:
    for step, allowed in ((traced.train, OF_HOST | CLOCK), (traced.evaluate, OF_HOST)):
        by_host = {op.type for op in step.get_operations() if not on_tpu(op)}
        assert by_host <= allowed
        assert bytes_that_leave(step) == 0


def test_matrices_are_multiplied_in_bfloat16_without_being_asked_for(traced: Traced) -> None:
    types = {op.outputs[0].dtype for op in traced.on_cores if op.type in PRODUCTS}
    assert traced.params.precision == "auto"
    assert tf.bfloat16 in types
    # The last layer of the encoder maps a mean in float32 to logits.
    assert types <= {tf.bfloat16, tf.float32}


def test_a_checkpoint_brings_back_weights_moments_and_step(
    traced: Traced, tpu: Cluster, tmp_path: Path
) -> None:
    state = traced.state
    record = JobRecord("model", traced.params)
    checkpoints = Checkpoints(str(tmp_path), state, record, 1, tpu)
    variables = [*state.model.variables, *state.optimizer.variables, state.step]
    saved = [variable.numpy() for variable in variables]
    with checkpoints:
        checkpoints.save(0)
    for variable in variables:
        variable.assign(tf.ones_like(variable) * 7)
    assert checkpoints.restore_latest()
    for variable, value in zip(variables, saved, strict=True):
        copies = tpu.strategy.experimental_local_results(variable)
        assert len(copies) == tpu.replicas
        assert all((copy.numpy() == value).all() for copy in copies)


def test_an_operation_that_leaves_the_cores_in_a_step_is_found(tpu: Cluster) -> None:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def loop(count: tf.Tensor) -> tf.Tensor:
        def step(number: tf.Tensor) -> tf.Tensor:
            parts = tpu.strategy.run(lambda: tf.strings.length(tf.strings.as_string(number)))
            return number + tf.math.sign(tpu.strategy.reduce("SUM", parts, axis=None))

        return tf.while_loop(lambda number: number < count, step, [tf.constant(0)])

    step = body(loop)
    lacking = {op.type for op in operations(step) if on_tpu(op) and not accepts(op)}
    by_host = {op.type for op in step.get_operations() if not on_tpu(op)}
    assert {"AsString", "StringLength"} <= lacking
    assert "Sign" in by_host - OF_HOST - CLOCK
    assert bytes_that_leave(step) > 0
