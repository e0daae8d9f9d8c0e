"""What a step costs beyond its computation, read from the graph that a TPU would be given."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

from tests.unit.training.fake_tpu import bodies_of_loops, bytes_that_leave, fake_tpu, on_tpu
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import TimedInput, training_batches
from tpu_training.loop.graph import operations
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import LoopFigures, create_train_loop
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

PARAMS = Params(global_batch_size=64, gradient_accumulation=2)
VARIABLES = 8
WRITES = {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}


@pytest.fixture(scope="module")
def data(bars: Path) -> DataSet:
    return open_data(str(bars))


@pytest.fixture(scope="module")
def loop(tpu: Cluster, data: DataSet) -> tf.Graph:
    """The graph of the loop of training steps."""
    state = create_train_state(tpu, load_model("mnist_cnn"), PARAMS, data.manifest, 10)
    compiled = create_train_loop(tpu, PARAMS, state, training_batches(data, tpu, PARAMS))
    return compiled.get_concrete_function(tf.TensorSpec((), tf.int32)).graph  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def step(loop: tf.Graph) -> tf.Graph:
    (body,) = bodies_of_loops(loop)
    return body


def test_no_value_leaves_eight_cores_during_a_step(step: tf.Graph) -> None:
    assert bytes_that_leave(step) == 0


def test_each_core_counts_its_steps_and_sums_its_losses_in_its_own_program(step: tf.Graph) -> None:
    written = [(op.type, on_tpu(op)) for op in step.get_operations() if op.type in WRITES]
    slots, sums = 2 * VARIABLES, 3
    assert written.count(("AssignAddVariableOp", True)) == slots + sums, "steps, numbers, counts"
    assert [write for write in written if not write[1]] == [("AssignAddVariableOp", False)], (
        "the clock of the input, on the host"
    )


def test_loss_norm_accuracy_and_step_leave_the_cores_once_at_the_end_of_the_loop(
    loop: tf.Graph,
) -> None:
    norms, loss, counts = (1 + VARIABLES) * 4, 4, 2 * 8
    step, clock = 8, 8
    assert bytes_that_leave(loop) == 8 * (norms + loss + counts) + step + clock


def test_a_loop_returns_one_tensor_to_save_round_trips(
    loop: tf.Graph,
) -> None:
    right_and_counted = 2
    figures = len(LoopFigures._fields) - 1 + VARIABLES + right_and_counted
    assert [output.shape for output in loop.outputs] == [(figures,)]


def test_a_value_that_a_step_hands_to_the_host_is_counted(tpu: Cluster) -> None:
    with tpu.strategy.scope():
        weight = tf.Variable(tf.zeros((3,)))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step() -> tf.Tensor:
        parts = tpu.strategy.run(lambda: weight * 2.0)
        return tpu.strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None) + weight

    assert bytes_that_leave(step.get_concrete_function().graph) == (8 + 1) * 3 * 4


def test_the_clock_of_the_input_waits_for_the_first_host_alone(cluster: Cluster) -> None:
    slice_of_two = fake_tpu(cores=4, hosts=2)
    graph = tf.Graph()
    with graph.as_default():
        batch = slice_of_two.strategy.experimental_distribute_values_from_function(
            lambda context: _on_core(slice_of_two, context.replica_id_in_sync_group)
        )
        TimedInput(lambda: (batch,), slice_of_two)()
    (end,) = (op for op in graph.get_operations() if op.name.startswith("sub"))
    waited_for = {
        tf.DeviceSpec.from_string(before.device).task
        for stamp in end.inputs
        for before in stamp.op.control_inputs
    }
    assert waited_for == {0}


def _on_core(cluster: Cluster, core: int) -> tf.Tensor:
    with tf.device(cluster.strategy.extended.worker_devices[core]):
        return tf.constant(core)


def test_a_step_in_parts_traces_the_model_once_and_has_one_program_for_all_of_them(
    one_device: Cluster, data: DataSet
) -> None:
    state = create_train_state(one_device, load_model("mnist_cnn"), PARAMS, data.manifest, 10)
    traced: list[bool] = []

    def forward(features: tf.Tensor, training: bool) -> tf.Tensor:
        traced.append(training)
        return state.model(features, training=training)

    noted = dataclasses.replace(state, scored=forward)
    batches = training_batches(data, one_device, PARAMS)
    loop = create_train_loop(one_device, PARAMS, noted, batches)
    graph = loop.get_concrete_function(tf.TensorSpec((), tf.int32)).graph  # type: ignore[attr-defined]
    convolutions = [op for op in operations(graph) if op.type == "Conv2D"]
    assert (len(traced), len(convolutions)) == (1, 2)
