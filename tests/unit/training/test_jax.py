"""`--backend=jax`: the same training on JAX's devices."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training.test_own_step import ROWS, contrast, dense
from tpu_training import Callback, InputError, LoopReport, Task
from tpu_training.errors import LoweringError

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster
    from tpu_training.cluster.jax_devices import JaxCluster

pytest.importorskip("jax", minversion="0.6.2")
pytestmark = pytest.mark.training

RANDOM = np.random.default_rng(4)
# Two inputs; the numbers of examples fit no batch.
INPUTS = {"table": RANDOM.normal(size=(100, 6)).astype("f4"), "codes": RANDOM.integers(0, 5, 100)}
CLASSES = (INPUTS["table"].argmax(axis=1) // 2).astype(np.int64)
WEIGHTS = RANDOM.uniform(0.5, 1.5, 100).astype("f4")
TRAIN = {name: each[:69] for name, each in INPUTS.items()}
TEST = {name: each[69:] for name, each in INPUTS.items()}
SIZES: dict[str, Any] = {
    "global_batch_size": 16,
    "evaluation_batch_size": 16,
    "steps_per_loop": 4,
    "epochs": 3,
    "learning_rate": 0.02,
    "data": {"train": (TRAIN, CLASSES[:69], WEIGHTS[:69]), "test": (TEST, CLASSES[69:])},
}

Train = Callable[..., tpu_training.Result]


@pytest.fixture(scope="session")
def jax_devices(cluster: Cluster) -> JaxCluster:
    """Two devices of JAX's in this process, which TensorFlow has split already."""
    from tpu_training.cluster.jax_devices import connect_jax

    return connect_jax(local_devices=2)


@pytest.fixture
def train(jax_devices: JaxCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains on two devices of either; each backend has a model directory."""
    from tpu_training.cluster.cluster import Cluster

    reduction = tf.distribute.ReductionToOneDevice()
    two = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], cross_device_ops=reduction)
    theirs = Cluster(two, "", None, has_tpu=False)
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: theirs)
    monkeypatch.setattr("tpu_training.job.run.connect_jax", lambda *_: jax_devices)

    def run(**settings: Any) -> tpu_training.Result:
        place = {"model_dir": f"{tmp_path}/{settings['backend']}", "model": network}
        return tpu_training.fit(**SIZES | place | settings)

    return run


def network(params: Any, spec: Any, seed: int) -> Any:
    """Return a Keras model with two inputs and batch normalisation, whose averages are state."""
    import keras

    table, codes = keras.Input((6,), name="table"), keras.Input((), name="codes", dtype="int32")
    rows = keras.layers.Dense(8, activation="relu")(table)
    rows = keras.layers.BatchNormalization(momentum=0.8)(rows)
    return keras.Model(
        {"table": table, "codes": codes},
        keras.layers.Dense(3)(rows + keras.layers.Embedding(5, 8)(codes)),
    )


def weights(result: tpu_training.Result) -> Mapping[str, Any]:
    return {each.name: each.numpy() for each in result.model.variables}


@pytest.mark.parametrize("more", [{}, {"ema_decay": 0.8, "gradient_accumulation": 2}])
def test_a_training_and_its_evaluation_are_those_of_tensorflow(
    train: Train, more: dict[str, Any]
) -> None:
    theirs, ours = (train(backend=backend, **more) for backend in ("tensorflow", "jax"))
    assert len(ours.history) == 3
    for mine, other in zip(ours.history, theirs.history, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    same = {"test_loss", "test_accuracy", "test_examples", "train_loss", "steps"}
    for name in same:
        assert ours.metrics[name] == pytest.approx(theirs.metrics[name], rel=1e-4), name
    assert ours.metrics["test_examples"] == 31
    assert ours.metrics["strategy"] == "JAX"
    for mine, other in zip(weights(ours).values(), weights(theirs).values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
    # What comes back predicts and evaluates, and so does the checkpoint elsewhere.
    restored = tpu_training.load(ours.model_dir, model=network)
    for answer in (ours, restored):
        found = tpu_training.evaluate(answer, (TEST, CLASSES[69:]))
        assert found["loss"] == pytest.approx(ours.metrics["test_loss"], rel=1e-4)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_call_of_several_steps_gives_bit_for_bit_what_single_ones_give(
    train: Train,
    jax_devices: JaxCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
) -> None:
    import jax

    from tpu_training.cluster.jax_devices import AXIS, Memory
    from tpu_training.compile import runtime

    mesh = jax.sharding.Mesh(jax_devices.mesh.devices[:devices], (AXIS,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    cluster = dataclasses.replace(jax_devices, mesh=mesh, memory=Memory(everywhere))
    monkeypatch.setattr("tpu_training.job.run.connect_jax", lambda *_: cluster)
    calls = list[int]()
    run = runtime._Program.__call__

    def counted(program: Any, batches: Any, sums: Any) -> Any:
        calls.append(len(batches))
        return run(program, batches, sums)

    monkeypatch.setattr(runtime._Program, "__call__", counted)
    monkeypatch.setattr(runtime, "_MOST_STEPS", 3)
    # However slow this machine is, no loop is shorter.
    for name in ("LOOP_SECONDS", "_LONG_FIRST_SECONDS"):
        monkeypatch.setattr(f"tpu_training.loop.train.{name}", 1e6)
    results = []
    # Loops of four steps end with a call of one; an evaluation begins with single batches.
    for share, expected in ((4, [1] * 14), (1, [3, 1] * 3 + [1, 1])):
        monkeypatch.setattr(runtime, "_SHARE", share)
        results.append(train(backend="jax", model_dir=f"{tmp_path}/{share}"))
        assert calls == expected
        calls.clear()
    single, several = results
    assert several.history == single.history
    assert several.metrics["test_loss"] == single.metrics["test_loss"]
    for mine, other in zip(weights(several).values(), weights(single).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_short_loops_and_large_batches_are_called_step_by_step() -> None:
    from tpu_training.compile.runtime import calls, most_steps

    assert [most_steps(size) for size in (1 << 10, 1 << 20, 1 << 30)] == [32, 8, 1]
    # The host reads the next batch while a step runs.
    assert list(calls(10, 32)) == [1] * 10
    assert list(calls(100, 8)) == [8] * 12 + [4]


class Stop(Callback):
    """Ends the training after its first loop."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        self.control.stop()


def test_a_training_that_ended_resumes_bit_for_bit(train: Train, tmp_path: Path) -> None:
    def dropping(params: Any, spec: Any, seed: int) -> Any:
        import keras

        model = network(params, spec, seed)
        dropped = keras.layers.Dropout(0.5)(model.output)
        return keras.Model(model.input, keras.layers.Dense(3)(dropped))

    whole = train(backend="jax", model=dropping)
    halves = {"backend": "jax", "model": dropping, "model_dir": f"{tmp_path}/halves"}
    first = train(**halves, callbacks=[Stop()])
    second = train(**halves)
    assert first.metrics["steps"] < second.metrics["steps"] == whole.metrics["steps"]
    assert [*first.history, *second.history] == whole.history
    for mine, other in zip(weights(second).values(), weights(whole).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("order", [("tensorflow", "jax"), ("jax", "tensorflow")])
def test_a_training_resumes_on_the_other_backend(train: Train, order: tuple[str, str]) -> None:
    whole = train(backend=order[0])
    place = {"model_dir": f"{whole.model_dir}-halves"}
    first = train(backend=order[0], callbacks=[Stop()], **place)
    second = train(backend=order[1], **place)
    rows = [*first.history, *second.history]
    for mine, other in zip(rows, whole.history, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)


def test_a_step_of_ones_own_sees_the_examples_of_all_devices(train: Train) -> None:
    views = {"left": ROWS, "right": ROWS + np.float32(0.1) * ROWS[:, ::-1]}
    task = Task("contrast", step=contrast, any_targets=True)
    given = {"model": dense("encoder"), "data": (views, None), "task": task, "optimizer": "sgd"}
    theirs, ours = (train(backend=backend, **given) for backend in ("tensorflow", "jax"))
    for mine, other in zip(ours.history, theirs.history, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
        assert mine["rows"] == 16


class Freeze(Callback):
    """Keeps the model's first weights before and after each loop; the rate becomes 0."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def start(self, step: int) -> None:
        self.look()

    def before_loop(self, step: int, report: LoopReport) -> None:
        self.look()
        self.control.scale_rate(0.0)

    def look(self) -> None:
        self.seen.append(self.control.model.trainable_variables[0].numpy())


def test_a_callback_sees_the_current_weights_and_changes_the_rate(train: Train) -> None:
    callback = Freeze()
    result = train(backend="jax", callbacks=[callback])
    drawn, first, *others = callback.seen
    assert len(others) == 2
    assert not np.allclose(first, drawn)
    for other in (*others, result.model.trainable_variables[0].numpy()):
        np.testing.assert_array_equal(other, first)


class Meddler(Callback):
    """Reads the model and sets the same rate again while the next loop runs."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        assert self.control.model.trainable_variables[0].numpy().any()
        self.control.scale_rate(1.0)


def test_a_callback_that_acts_while_steps_run_loses_none_of_them(train: Train) -> None:
    quiet = train(backend="jax")
    meddled = train(backend="jax", callbacks=[Meddler()], model_dir=f"{quiet.model_dir}-meddled")
    assert meddled.history == quiet.history
    for mine, other in zip(weights(meddled).values(), weights(quiet).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_second_start_takes_the_program_of_the_first_and_trains_bit_for_bit_alike(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    from tpu_training.cluster.jax_devices import _keep_programs

    before, found = jax.config.jax_compilation_cache_dir, list[str]()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        # These programs are too small to be kept.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        _keep_programs(jax)
        reset_cache()
        first = train(backend="jax", model_dir=f"{tmp_path}/first")
        assert list(tmp_path.glob("tpu-stack/jax/*"))
        found.clear()
        second = train(backend="jax", model_dir=f"{tmp_path}/second")
        assert found.count("/jax/compilation_cache/cache_hits") >= 2
        jax.config.update("jax_compilation_cache_dir", "/mine")
        _keep_programs(jax)
        assert jax.config.jax_compilation_cache_dir == "/mine"
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 1)
        jax.config.update("jax_compilation_cache_dir", before)
        reset_cache()
    for mine, other in zip(weights(first).values(), weights(second).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_constants_of_the_model_are_not_taken_for_its_variables(train: Train) -> None:
    table = np.arange(200, dtype=np.float32) / 2000

    def create_model(params: Any, spec: Any, seed: int) -> Any:
        class Net(tf.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                # As large as the constant, which XLA gets first or last.
                self.bias = tf.Variable(tf.ones((200,)))
                self.constant = tf.constant(table)
                self.kernel = tf.Variable(tf.ones((6, 3)))

            def __call__(self, features: Any, training: bool) -> Any:
                added = tf.reduce_sum(self.constant * self.constant * self.bias)
                return features["table"] @ self.kernel * added

        return Net()

    theirs, ours = (train(backend=each, model=create_model) for each in ("tensorflow", "jax"))
    for mine, other in zip(ours.history, theirs.history, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)
    assert ours.metrics["test_loss"] == pytest.approx(theirs.metrics["test_loss"], rel=1e-4)


def test_a_step_that_fails_spoils_no_later_training(train: Train, jax_devices: JaxCluster) -> None:
    class Failing(Callback):
        def before_loop(self, step: int, report: LoopReport) -> None:
            # As if the device had consumed them.
            for _, array in jax_devices.memory._arrays.values():
                array.delete()

    with pytest.raises(tpu_training.TrainingError):
        train(backend="jax", callbacks=[Failing()])
    again = train(backend="jax", model_dir=f"{train(backend='jax').model_dir}-again")
    assert again.metrics["steps"] == 12


def test_a_layer_that_asks_tensorflow_for_the_other_devices_is_refused(train: Train) -> None:
    def synchronized(params: Any, spec: Any, seed: int) -> Any:
        import keras

        model = network(params, spec, seed)
        inner = keras.layers.BatchNormalization(synchronized=True, name="together")(model.output)
        return keras.Model(model.input, keras.layers.Dense(3)(inner))

    with pytest.raises(InputError, match="--backend=jax: together: with synchronized=True"):
        train(backend="jax", model=synchronized)


def test_what_xla_does_not_take_is_refused_with_its_line(train: Train) -> None:
    def unique(params: Any, spec: Any, seed: int) -> Any:
        class Net(tf.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.kernel = tf.Variable(tf.zeros((6, 3)))

            def __call__(self, features: Any, training: bool) -> Any:
                found = tf.strings.length(tf.strings.as_string(features["table"][:, :1]))
                return features["table"] @ self.kernel + tf.cast(found, tf.float32)

        return Net()

    with pytest.raises(LoweringError, match=r"test_jax.py:\d+.*AsString"):
        train(backend="jax", model=unique)


def compile_for_tpus(*topologies: str) -> None:
    """Compile a step for TPUs that are not here."""
    import jax
    import libtpu
    from jax.experimental import topologies as described

    from tpu_training.cluster.jax_devices import AXIS, JaxCluster, Memory
    from tpu_training.compile.runtime import TrainLoop
    from tpu_training.data import data_set
    from tpu_training.loop.state import create_train_state
    from tpu_training.models.params import Params
    from tpu_training.models.registry import ModelDefinition

    os.environ["TPU_LIBRARY_PATH"] = libtpu.get_library_path()
    params = Params(global_batch_size=32, ema_decay=0.9)
    made = data_set.given_function({"train": SIZES["data"]["train"]})
    data = data_set.of_function(made, "data", params.seed)
    definition = ModelDefinition("network", Params, network, own=True)
    jax.config.update("jax_enable_x64", True)
    for topology in topologies:
        devices = described.get_topology_desc(platform="tpu", topology_name=topology).devices
        tpu = JaxCluster(
            *(tf.distribute.get_strategy(), "", None, True, "/device:CPU:0"),
            mesh=jax.sharding.Mesh(np.array(devices), (AXIS,)),
            memory=Memory(None),
        )
        state = create_train_state(tpu, definition, params, data.manifest, steps=10)
        run = TrainLoop(tpu, params, state, data, first_step=0)._program._run
        print(topology, len(devices), run.memory_analysis().argument_size_in_bytes, flush=True)


def test_googles_compiler_takes_what_jax_gets() -> None:
    """In a process of its own: libtpu has it and its children ignore SIGHUP."""
    pytest.importorskip("libtpu")
    code = "import sys; from tests.unit.training.test_jax import *; compile_for_tpus(*sys.argv[1:])"
    own = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line.split() for line in done.stdout.splitlines()[-4:]]
    assert [line[:2] for line in said] == [
        *(["v5e:2x2", "4"], ["v5p:2x2x1", "4"]),
        *(["v6e:2x2", "4"], ["tpu7x:2x2x1", "8"]),
    ]
    assert all(int(line[2]) > 0 for line in said)


def test_a_tpu_elsewhere_is_refused_before_tensorflow_looks_for_it(tmp_path: Path) -> None:
    given = SIZES | {"model": network, "model_dir": str(tmp_path), "tpu": "grpc://10.0.0.2:8470"}
    with pytest.raises(InputError, match=re.escape("--backend=jax") + ".*--tpu names another"):
        tpu_training.fit(**given, backend="jax")
    assert not list(tmp_path.iterdir())


def test_a_missing_jax_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from tpu_training.cluster.jax_devices import connect_jax

    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(InputError, match=r"--backend=jax.*tpu-stack-training\[jax\]"):
        connect_jax.__wrapped__(0)


@pytest.mark.parametrize("version", ["0.5.3", "0.12.0"])
def test_a_jax_that_the_step_was_not_tried_with_is_refused_with_those_that_it_was(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    import jax

    from tpu_training.cluster.jax_devices import connect_jax

    monkeypatch.setattr(jax, "__version__", version)
    monkeypatch.setattr(jax, "__version_info__", tuple(map(int, version.split("."))))
    with pytest.raises(InputError, match=f"JAX is {version}.*install 'jax>=0.6.2,<0.12'"):
        connect_jax.__wrapped__(0)


def test_the_package_asks_for_the_releases_of_jax_that_the_trainer_takes() -> None:
    from tpu_training.cluster import jax_devices

    text = Path("training/pyproject.toml").read_text()
    first, too_new = (
        ".".join(map(str, each)) for each in (jax_devices._FIRST, jax_devices._TOO_NEW)
    )
    assert f'jax = ["jax>={first},<{too_new}"]' in text


def test_a_later_job_of_a_process_does_not_wait_for_the_other_hosts_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tpu_training.cluster import hosts, jax_devices

    earlier = object()
    monkeypatch.setattr(hosts, "_met", earlier)
    # Nor does JAX take its service's address twice, however long the job may wait.
    for seconds in (0.0, 300.0):
        assert jax_devices._meet(None, hosts.Place("h:1", 2, 0), seconds) is earlier
