"""Weights from elsewhere, frozen variables, and rates for groups and layers."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.checkpoints.initial_weights import (
    check_first_weights,
    load_initial_weights,
    map_names,
)
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import training_batches
from tpu_training.errors import CheckpointError, InputError
from tpu_training.loop.optimizers import choose_variables
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.layers import Conv2D, Dense, Embedding
from tpu_training.models.model import create_model, variable_paths
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[Any]
PARAMS = Params(global_batch_size=64, warmup_fraction=0.0, schedule="constant")


class Net(tf.Module):  # type: ignore[misc]
    """A part with a convolution, and a head."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stem = Conv2D(3, 1, 2, seed=1)
        self.head = Dense(4, classes, seed=2)


class Hosts:
    """Two hosts, one after the other."""

    processes = 2

    def __init__(self) -> None:
        self.heard: list[float] = []

    def spread(self, value: float) -> tuple[float, float]:
        self.heard.append(value)
        return min(self.heard), max(self.heard)


def test_hosts_that_begin_with_different_weights_are_refused() -> None:
    hosts: Any = Hosts()
    check_first_weights(hosts, Net())
    check_first_weights(hosts, Net())
    changed = Net()
    changed.head.bias.assign_add(tf.ones(3))
    with pytest.raises(InputError, match="begins with different weights on each host; draw them"):
        check_first_weights(hosts, changed)


@pytest.fixture(scope="module")
def data(bars: Path) -> DataSet:
    return open_data(str(bars))


@pytest.fixture(params=["h5", "keras 3", "checkpoint", "safetensors"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[str], Array]]:
    """A file with weights for Net, except for its head's kernel; and how to look into it."""
    values = {
        "stem/kernel": np.arange(18, dtype=np.float32).reshape(3, 3, 1, 2),
        "stem/bias": np.ones(2, np.float32),
        "head/kernel": np.ones((4, 7), np.float32),
        "head/bias": np.full(3, 5, np.float32),
    }
    write = {
        "h5": _write_h5,
        "keras 3": _write_keras,
        "checkpoint": _write_checkpoint,
        "safetensors": _write_torch,
    }
    return write[request.param](tmp_path, values), values.__getitem__


def _write_h5(folder: Path, values: dict[str, Array]) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "net.h5", "w") as file:
        for name, value in values.items():
            file[f"{name}:0"] = value
    return str(folder / "net.h5")


def _write_keras(folder: Path, values: dict[str, Array]) -> str:
    import zipfile

    with zipfile.ZipFile(folder / "net.keras", "w") as archive:
        archive.write(_write_h5(folder, values), "model.weights.h5")
    return str(folder / "net.keras")


def _write_checkpoint(folder: Path, values: dict[str, Array]) -> str:
    """As other code than this package's does it: parts with names of their own."""
    parts: dict[str, Any] = {}
    for name, value in values.items():
        part, _, own = name.partition("/")
        setattr(parts.setdefault(part, tf.Module()), own, tf.Variable(value))
    return str(tf.train.Checkpoint(**parts).save(str(folder / "net")))


def _write_torch(folder: Path, values: dict[str, Array]) -> str:
    """Names with dots, kernels with their outputs first."""
    numpy = pytest.importorskip("safetensors.numpy")
    turned = {name.replace("/", "."): np.ascontiguousarray(v.T) for name, v in values.items()}
    kernel = values["stem/kernel"].transpose(3, 2, 0, 1)
    turned["stem.kernel"] = np.ascontiguousarray(kernel)
    numpy.save_file(turned, str(folder / "net.safetensors"), metadata={"format": "pt"})
    return str(folder / "net.safetensors")


def test_weights_of_every_form_are_taken_by_name_and_shape(
    one_device: Cluster, stored: tuple[str, Callable[[str], Array]]
) -> None:
    path, there = stored
    model = Net()
    fresh = model.head.kernel.numpy()
    loaded = load_initial_weights(one_device, Params(init_from=path), model)
    assert loaded is not None
    assert loaded.matched == ["head/bias", "stem/bias", "stem/kernel"]
    assert loaded.fresh == {"head/kernel": "here (4, 3), there (4, 7)"}
    for name, variable in variable_paths(model):
        expected = fresh if name == "head/kernel" else there(name)
        assert np.array_equal(variable.numpy(), expected), name


def test_a_table_with_a_row_more_for_padding_takes_all_that_the_file_has(
    one_device: Cluster, tmp_path: Path
) -> None:
    """As GPT-2's tokenizer needs, which has no padding; two rows more are another vocabulary's."""
    given: dict[str, Array] = {"tokens/table": np.ones((5, 2)), "places/table": np.ones((3, 2))}
    path = _write_checkpoint(tmp_path, given)
    model = tf.Module()
    model.tokens, model.places = Embedding(6, 2, seed=1), Embedding(5, 2, seed=2)
    last = model.tokens.table.numpy()[-1:]
    loaded = load_initial_weights(one_device, Params(init_from=path), model)
    assert loaded
    assert loaded.fresh == {"places/table": "here (5, 2), there (3, 2)"}
    expected = np.concatenate([given["tokens/table"], last])
    np.testing.assert_array_equal(model.tokens.table.numpy(), expected)


KERAS = """
from tensorflow import keras

def create_model(params, spec, seed):
    return keras.Sequential([
        keras.Input(spec.shape),
        keras.layers.Conv2D(2, 3),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(spec.classes, name="top"),
    ])
"""


@pytest.mark.parametrize("ending", [".weights.h5", ".keras"])
def test_a_keras_models_own_file_is_loaded_by_keras_and_its_head_stays_fresh(
    one_device: Cluster, tmp_path: Path, ending: str
) -> None:
    if not hasattr(tf.keras, "Variable"):
        pytest.skip("own models need Keras 3")
    (tmp_path / "net.py").write_text(KERAS)
    definition = load_model(str(tmp_path / "net.py"))
    params = build_params({"precision": "float32"}, (), kind=definition.params)

    def create(classes: int) -> tf.Module:
        return create_model(definition, params, DataSpec("image", (6, 6, 1), "uint8", classes), 1)

    theirs, ours = create(7), create(3)
    for _, variable in variable_paths(theirs):
        variable.assign(tf.fill(variable.shape, 0.25))
    model = theirs.keras()
    path = str(tmp_path / f"net{ending}")
    model.save(path) if ending == ".keras" else model.save_weights(path)
    head = ours.keras().layers[-1].kernel.numpy()
    loaded = load_initial_weights(one_device, Params(init_from=path), ours)
    assert loaded is not None
    assert sorted(loaded.fresh) == ["top/bias", "top/kernel"]
    assert len(loaded.matched) == 6
    assert np.array_equal(ours.keras().layers[-1].kernel.numpy(), head)
    for name, variable in variable_paths(ours):
        assert name in loaded.fresh or np.all(variable.numpy() == 0.25), name


def test_a_file_that_keras_cannot_load_leaves_the_model_as_it_was(
    one_device: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(KERAS)
    definition = load_model(str(tmp_path / "net.py"))
    params = build_params({"precision": "float32"}, (), kind=definition.params)
    model = create_model(definition, params, DataSpec("image", (6, 6, 1), "uint8", 3), 1)
    before = {name: variable.numpy() for name, variable in variable_paths(model)}
    params = Params(init_from=str(tmp_path / "bad.weights.h5"))
    Path(params.init_from).write_text("no")
    with pytest.raises(InputError, match=r"bad\.weights\.h5: Keras can't load it"):
        load_initial_weights(one_device, params, model)
    for name, variable in variable_paths(model):
        assert np.array_equal(variable.numpy(), before[name])


def test_unmatched_weights_are_listed_on_both_sides(
    one_device: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write_h5(tmp_path, {"a/kernel": np.ones((4, 7)), "a/bias": np.ones(3), "b": np.ones(1)})
    with caplog.at_level(logging.INFO):
        load_initial_weights(one_device, Params(init_from=path, init_map="a/*=head/*"), Net())
    assert caplog.messages == [
        f"init: 1 of 4 variables from {path}",
        "init: left fresh: head/kernel (here (4, 3), there (4, 7)), stem/bias (not there), "
        "stem/kernel (not there)",
        "init: unused in the file: b",
    ]


def test_a_file_of_which_nothing_fits_is_refused_with_the_names_of_both_sides(
    one_device: Cluster, tmp_path: Path
) -> None:
    path = _write_h5(tmp_path, {"a/kernel": np.ones((4, 3))})
    with pytest.raises(InputError, match=r"none .* fits; it has a/kernel; .* head/bias, head/ker"):
        load_initial_weights(one_device, Params(init_from=path), Net())


def test_files_without_weights_are_refused(one_device: Cluster, tmp_path: Path) -> None:
    (tmp_path / "broken.h5").write_text("no")
    for name, words in (
        ("broken.h5", "can't be read"),
        ("", "is not a checkpoint; expected"),
    ):
        with pytest.raises(InputError, match=words):
            load_initial_weights(one_device, Params(init_from=str(tmp_path / name)), Net())


def test_names_are_mapped_by_the_first_rule_that_matches() -> None:
    names = ["bert/layer_0/out/w", "bert/layer_1/out/w", "pooler/w", "step"]
    rules = "bert/layer_*/out/w=layers/*/narrow,pooler/*="
    assert map_names(rules, names) == {
        "bert/layer_0/out/w": "layers/0/narrow",
        "bert/layer_1/out/w": "layers/1/narrow",
        "step": "step",
    }


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ("bert", "'bert' is not THEIRS=OURS"),
        ("a=*", r"\* has more \* than a"),
        ("pooler=head", r"pooler matches no weight .*; the file has a, b"),
    ],
)
def test_a_map_that_maps_nothing_is_refused(rules: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        map_names(rules, ["a", "b"])


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        ({}, {"head/bias": 1, "head/kernel": 1, "stem/bias": 1, "stem/kernel": 1}),
        ({"freeze": "stem"}, {"head/bias": 1, "head/kernel": 1}),
        ({"freeze": "*,!head"}, {"head/bias": 1, "head/kernel": 1}),
        (
            {"freeze": "*/kernel", "rate_factors": "*=3,stem=0.5"},
            {"head/bias": 3, "stem/bias": 0.5},
        ),
    ],
)
def test_patterns_choose_what_is_trained_and_how_fast(
    net: Net, settings: dict[str, Any], factors: dict[str, float]
) -> None:
    chosen = choose_variables(Params(**settings), net)
    paths = {id(variable): path for path, variable in variable_paths(net)}
    trained = [paths[id(variable)] for variable in chosen.trained]
    assert dict(zip(trained, chosen.rate_factors, strict=True)) == factors
    assert len(chosen.frozen) == 4 - len(factors)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"freeze": "sten/*"}, r"'sten/\*' matches none .* its parts are head, stem"),
        ({"freeze": "stem,!haed"}, "'haed' matches none"),
        ({"freeze": "*"}, "freezes all variables"),
        ({"rate_factors": "sten=2"}, "'sten' matches none"),
        ({"rate_factors": "head=fast"}, "'head=fast' is not PATTERN=FACTOR, such as head=10"),
        ({"freeze": "stem", "rate_factors": "stem=2"}, "'stem' matches none"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(
    net: Net, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        choose_variables(Params(**settings), net)


def values(state: TrainState) -> dict[str, Array]:
    return {path: variable.numpy() for path, variable in variable_paths(state.model)}


@pytest.fixture(scope="module")
def fine_tuned(one_device: Cluster, data: DataSet) -> tuple[TrainState, dict[str, Array]]:
    """A small ResNet after two steps with its first parts frozen, and its first values."""
    definition = load_model("resnet")
    given = {
        "depth": 8,
        "global_batch_size": 64,
        "gradient_accumulation": 2,
        "weight_decay": 0.1,
        "warmup_fraction": 0,
        "freeze": "stem,blocks/0",
        "rate_factors": "head/bias=0",
    }
    params = build_params(given, (), kind=definition.params)
    state = create_train_state(one_device, definition, params, data.manifest, 10)
    before = values(state)
    batches = training_batches(data, one_device, params)
    loop = create_train_loop(one_device, params, state, batches)
    loop(tf.constant(2))
    return state, before


def test_frozen_variables_and_averages_keep_their_bits_and_all_others_learn(
    fine_tuned: tuple[TrainState, dict[str, Array]],
) -> None:
    state, before = fine_tuned
    for path, value in values(state).items():
        same = path.startswith(("stem/", "blocks/0/")) or path == "head/bias"
        assert np.array_equal(value, before[path]) == same, path


def test_frozen_variables_have_no_moments(
    fine_tuned: tuple[TrainState, dict[str, Array]],
) -> None:
    state, _ = fine_tuned
    trained = len(state.model.trainable_variables) - 3 - 6
    assert len(state.optimizer.slots) == len(state.variables) == trained


def test_a_training_starts_from_another_data_sets_and_its_checkpoint_counts_before_that(
    digits_model: Path, bars: Path, run_here: Callable[..., None], tmp_path: Path
) -> None:
    common = ("--global_batch_size=64", "--epochs=0.4", "--freeze=conv_*", f"--data={bars}")
    start = (f"--model-dir={tmp_path}", f"--init-from={digits_model}")
    run_here("train", *common, *start, "--weight_decay=0.5")
    first = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(digits_model / "checkpoints")))
    run_here("train", *common, start[0], "--init-from=/nowhere/else.index", "--epochs=0.5")
    last = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(tmp_path / "checkpoints")))
    for part, same in (("conv_1", True), ("conv_2", True), ("dense_1", False)):
        key = f"model/{part}/kernel/.ATTRIBUTES/VARIABLE_VALUE"
        assert np.array_equal(first.get_tensor(key), last.get_tensor(key)) == same
    assert last.get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE") == 5
    with pytest.raises(CheckpointError, match=r"was trained with .*freeze=conv_\*"):
        run_here("train", *common[:2], common[3], start[0])


def test_frozen_batch_normalisation_normalises_by_its_averages(
    one_device: Cluster,
) -> None:
    from tpu_training.models.layers import BatchNorm
    from tpu_training.models.step_context import step_context

    norm = BatchNorm(2)
    images = tf.random.stateless_normal((4, 2, 2, 2), (1, 2), mean=3.0)
    with step_context(
        tf.constant([0, 0]), frozenset({id(norm.mean), id(norm.variance)})
    ) as context:
        frozen = norm(images, training=True)
    assert frozen.numpy() == pytest.approx(norm(images, training=False).numpy())
    assert not context.averages


def test_missing_initial_weights_are_reported_at_once_unless_the_job_resumes(
    bars: Path, tmp_path: Path
) -> None:
    from tpu_training.__main__ import parse
    from tpu_training.job.job import Job, check_local_files

    where = (f"--data={bars}", f"--model-dir={tmp_path}", "--init-from=no/such")
    job = parse(["train", *where])
    assert isinstance(job, Job)
    with pytest.raises(InputError, match="--init_from=no/such: there is no such file, folder"):
        check_local_files(job)
    check_local_files(dataclasses.replace(job, params=PARAMS))
    check_local_files(dataclasses.replace(job, model_dir="gs://b/m"))
    (tmp_path / "checkpoints").mkdir()
    check_local_files(job)


def test_the_head_of_another_number_of_classes_is_left_fresh(
    one_device: Cluster, digits_model: Path
) -> None:
    definition = load_model("mnist_cnn")
    model = definition.create_model(
        Params(precision="float32"), DataSpec("image", (28, 28, 1), "uint8", 3), 0
    )
    loaded = load_initial_weights(one_device, Params(init_from=str(digits_model)), model)
    assert loaded is not None
    assert loaded.fresh == {
        "dense_2/bias": "here (3,), there (10,)",
        "dense_2/kernel": "here (128, 3), there (128, 10)",
    }
    assert not loaded.unused
