"""Programs that the rows about training run, each in a process of its own.

`python -m bench.programs NAME ARGUMENTS`; each prints its figures as JSON.
"""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

from bench.measure import Result, compare, in_turn, run_program, write_mnist
from tpu_training.api import fit, write_data as write_arrays
from tpu_training.checkpoints import checkpoints
from tpu_training.checkpoints.checkpoints import Checkpoints, CheckpointWriter
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import Addresses, NoTpu, Wait
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import training_batches
from tpu_training.job.lr_range_test import RateTrainer, Sweep, read, run_sweep, run_trials
from tpu_training.job.start import prepare_tensorflow
from tpu_training.loop import train
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop, run_loop
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.models.spec import DataSpec
from tpustack.project import root

# --- What trainings at several learning rates reach.

# How far a training gets also depends on the order of its batches: by a point, for the digits. Only
# what comes close to the best in the first one can be the best in the mean.
TIMES, _CLOSE = 3, 0.03


@dataclass(frozen=True)
class Tried:
    """A pair's test accuracies, by learning rate and at the rate that the range test suggests.

    They are means of some trainings, where they come close to the best.
    """

    name: str
    grid: dict[float, float]
    suggestion: float | None
    accuracy: float = 0.0

    @property
    def lost(self) -> float | None:
        """The points lost to the best of the grid; None without a suggestion."""
        if self.suggestion is None:
            return None
        return max(0.0, 100 * (max(self.grid.values()) - self.accuracy))


def train_grid(rates: list[float], accuracy: Callable[[float], float]) -> dict[float, float]:
    """Train once at each of `rates`, and again where that came close to the best; return means."""
    found = {rate: [accuracy(rate)] for rate in rates}
    best = max(first for (first,) in found.values())
    for rate, accuracies in found.items():
        if accuracies[0] >= best - _CLOSE:
            accuracies += [accuracy(rate) for _ in range(TIMES - 1)]
    return {rate: mean(accuracies) for rate, accuracies in found.items()}


def lost_points(tried: list[Tried]) -> list[Result]:
    """Return the largest loss of accuracy, and how many pairs get no suggestion."""
    lost = [pair.lost for pair in tried if pair.lost is not None]
    name = f"range test: {len(tried)} pairs"
    return [
        Result(f"{name}, most that a suggestion loses", max(lost, default=0.0), "points", 1.0),
        Result(f"{name}, without a suggestion", len(tried) - len(lost), ""),
    ]


# --- Trains at the rate that the range test suggests, and at the half decades of a grid.

_BATCHES = {"mnist": 256, "digits": 64, "reviews": 64}
# The model and its data; wide is a file of docs/models.md.
PAIRS = (
    *(("wide", "mnist"), ("mnist_cnn", "mnist"), ("mnist_cnn", "digits")),
    *(("bert", "reviews"), ("resnet", "digits")),
)
# The grid's exponents of 10, in halves, by optimizer.
OPTIMIZERS = {"adam": range(-8, 1), "sgd": range(-6, 3), "lars": range(-2, 4)}
_HIGHEST = {"lars": 100.0}
_SWEEP_STEPS, _SMOOTHING, _STEPS = 150, 0.9, 100


def write_data(folder: Path) -> Path:
    """Convert all datasets into subfolders of `folder`, and write the own model."""
    write_mnist(folder).rename(folder / "mnist")
    _convert(folder, "digits", "--source", "digits")
    write_reviews = _code("training/recipes/bert-reviews.md")
    subprocess.run([sys.executable, "-c", write_reviews], cwd=folder, check=True)
    source = ("--source", str(folder / "reviews.csv"))
    _convert(folder, "reviews", *source, "--text-length", "16", "--test-fraction", "0.5")
    (folder / "wide.py").write_text(_code("docs/models.md", "This is `wide.py`"), encoding="utf-8")
    return folder


def _convert(folder: Path, name: str, *arguments: str) -> None:
    run_program("tpu_training", "data", "convert", "--output", str(folder / name), *arguments)


def _code(page: str, after: str = "") -> str:
    text = (root() / page).read_text(encoding="utf-8")
    return str(re.findall(r"^```python\n(.*?)^```", text[text.index(after) :], re.M | re.S)[0])


def try_pair(folder: Path, pair: tuple[str, str], optimizer: str) -> Tried:
    """Run the range test of a pair, then train at the suggestion and over the grid."""
    name, data = pair
    model = load_model(str(folder / "wide.py") if name == "wide" else name)
    settings = {"optimizer": optimizer, "global_batch_size": str(_BATCHES[data])}
    settings |= {"depth": "8"} if name == "resnet" else {}
    params = build_params({}, settings.items(), (), model.params)
    prepare_tensorflow(None, trains=True)
    cluster, held = connect(NoTpu(), Wait(), 0), open_data(str(folder / data))
    trainer = RateTrainer(cluster, model, params, held, _SWEEP_STEPS)
    evaluate = create_evaluation(cluster, params, held, trainer.state)

    def accuracy(rate: float) -> float:
        trainer.try_rate(rate, _STEPS)
        return evaluate().metrics["accuracy"]

    sweep = Sweep(1e-6, _HIGHEST.get(optimizer, 10.0), _SWEEP_STEPS, _SMOOTHING, _STEPS)
    reading = read(run_sweep(trainer, sweep), sweep.smoothing)
    suggestion = None
    if reading.lowest:
        suggestion = run_trials(trainer, sweep, reading.lowest, reading.first).suggestion
    grid = train_grid([10 ** (half / 2) for half in OPTIMIZERS[optimizer]], accuracy)
    at = f"{name}, {data} | {optimizer}"
    if suggestion is None:
        return Tried(at, grid, None)
    return Tried(at, grid, suggestion, mean(accuracy(suggestion) for _ in range(TIMES)))


# --- What training loses to a checkpoint, asynchronous and synchronous.
#
# A turn is LOOPS loops of STEPS steps, as the trainer does them. A checkpoint costs what a turn
# that begins with one takes longer, with the writing behind it as far as that takes the processor
# from the steps. TARGET is a folder or a gs:// URL.

_WARM_UP, _KEEP = 2, 3


class Turns:
    """Turns of training, with and without a checkpoint at their beginning."""

    def __init__(self, data: Path, target: str, loops: int, steps: int) -> None:
        """Prepare the MNIST CNN with Adam's moments, checkpoints of which go to `target`."""
        found, params = open_data(str(data)), Params(global_batch_size=64)
        cluster, definition = connect(NoTpu(), Wait(), 0), load_model("mnist_cnn")
        state = create_train_state(cluster, definition, params, found.manifest, 10**6)
        batches = training_batches(found, cluster, params)
        self._loop = create_train_loop(cluster, params, state, batches)
        self._loops, self._steps = loops, steps
        record = JobRecord(definition.name, params)
        self._checkpoints = Checkpoints(f"{target}/ours", state, record, _KEEP, cluster)
        parts = {"model": state.model, "optimizer": state.optimizer, "step": state.step}
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(**parts, record=record), f"{target}/tensorflow", max_to_keep=_KEEP
        )
        self._number = 0

    def plain(self) -> None:
        """No checkpoint."""
        for _ in range(self._loops):
            float(self._loop(tf.constant(self._steps))[0])

    def asynchronous(self) -> None:
        """The trainer's checkpoint, written while the turn runs."""
        self._number += 1
        self._checkpoints.save(self._number)
        self.plain()

    def synchronous(self) -> None:
        """TensorFlow's own checkpoint of the same."""
        self._manager.save()
        self.plain()

    def seconds(self, turn: Callable[[], None]) -> float:
        """How long `turn` takes until nothing is left to be written."""
        begun = time.perf_counter()
        turn()
        self._checkpoints.wait()
        return time.perf_counter() - begun


def checkpoint(data: str, target: str, loops: str, steps: str, rounds: str) -> None:
    """What is lost is told by the plain turns before and after."""
    turns = Turns(Path(data), target, int(loops), int(steps))
    kinds = (turns.asynchronous, turns.synchronous)
    lost: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
    before = turns.seconds(turns.plain)
    for _ in range(_WARM_UP + int(rounds)):
        for kind in kinds:
            taken, after = turns.seconds(kind), turns.seconds(turns.plain)
            lost[kind.__name__].append(taken - (before + after) / 2)
            before = after
    print(json.dumps({kind: statistics.median(all_[_WARM_UP:]) for kind, all_ in lost.items()}))


# --- A trainer's steps a second against those of Keras' fit, measured in turn.

# Takes a fixed number of steps.
Trainer = Callable[[], None]


def print_rates(
    ours: Trainer, fit: Callable[[int], Trainer], numbers: Sequence[int], steps: int, rounds: int
) -> None:
    """Find Keras' best number of steps per execution, then measure `steps` in turn; print JSON."""

    def rate(trainer: Trainer) -> float:
        begun = time.perf_counter()
        trainer()
        return steps / (time.perf_counter() - begun)

    ours()
    trainers = {number: fit(number) for number in numbers}
    for trainer in trainers.values():
        trainer()
    best = max(numbers, key=lambda number: rate(trainers[number]))
    turns = in_turn(lambda: rate(ours), lambda: rate(trainers[best]), rounds)
    figures = {"ratio": turns.ratio, "ours": turns.first, "keras": turns.second}
    print(json.dumps({**figures, "steps_per_execution": best}))


# --- Steps a second of the trainer's loop and of Keras' fit, in turn.

_BATCH, _FIT_STEPS, _ROUNDS = 256, 200, 5
_STEPS_PER_EXECUTION = (1, 10, 50, 100, 200)

Arrays = tuple[Any, Any]


def ours(model: ModelDefinition, data: DataSet, batch: int, loops: int, steps: int) -> Trainer:
    """Return the trainer: its model, optimizer, input and loop; `loops` of `steps` each time."""
    params = build_params({"global_batch_size": batch}, (), (), model.params)
    cluster = connect(NoTpu(), Wait(), 0)
    state = create_train_state(cluster, model, params, data.manifest, 10**6)
    loop = create_train_loop(cluster, params, state, training_batches(data, cluster, params))

    def train() -> None:
        for _ in range(loops):
            run_loop(cluster, loop, steps)

    return train


def network_of_keras() -> Any:
    """Return the trainer's MNIST network in the way of Keras' own guides, compiled."""
    keras: Any = tf.keras
    layers = keras.layers
    network = keras.Sequential([layers.Rescaling(1 / 127.5, offset=-1.0)])
    for filters in (16, 32):
        network.add(layers.Conv2D(filters, 3, padding="same"))
        network.add(layers.MaxPooling2D(padding="same"))
        network.add(layers.ReLU())
    for layer in (layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)):
        network.add(layer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(keras.optimizers.Adam(0.004), loss)
    return network


def keras_fit(
    model: Any, arrays: Arrays, batch: int, steps: int, steps_per_execution: int
) -> Trainer:
    """Return `fit` of a compiled model on batches as tf.data's own guide has them."""
    given = {"optimizer": model.optimizer, "loss": model.loss, "metrics": ["accuracy"]}
    model.compile(**given, steps_per_execution=steps_per_execution)
    examples = tf.data.Dataset.from_tensor_slices(arrays).cache()
    shuffled = examples.shuffle(len(arrays[1]), reshuffle_each_iteration=True).repeat()
    batches = shuffled.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return lambda: model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0)


def _read(data: DataSet) -> Arrays:
    images, labels = [], []
    for record in tf.data.TFRecordDataset(data.paths("train")).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        images.append(feature["image"].bytes_list.value[0])
        labels.append(feature["label"].int64_list.value[0])
    shape = (len(labels), *data.manifest.spec.shape)
    return tf.reshape(tf.io.decode_raw(images, tf.uint8), shape), labels


def network(folder: str) -> None:
    """Measure the trainer and Keras on the dataset in `folder`."""
    data = open_data(folder)
    # Loops of 50 steps, as by default.
    trainer = ours(load_model("mnist_cnn"), data, _BATCH, _FIT_STEPS // 50, 50)
    arrays = _read(data)

    def fit(steps_per_execution: int) -> Trainer:
        return keras_fit(network_of_keras(), arrays, _BATCH, _FIT_STEPS, steps_per_execution)

    print_rates(trainer, fit, _STEPS_PER_EXECUTION, _FIT_STEPS, _ROUNDS)


# --- Steps a second of Keras models in the trainer's loop and in Keras' fit, in turn.

_MODEL_BATCH, _MODEL_STEPS, _MODEL_ROUNDS = 32, 25, 3
_MODEL_STEPS_PER_EXECUTION = (1, 5, 25)
_EXAMPLES, _CLASSES, _VOCABULARY = 1024, 10, 1000
_WIDTH, _HEADS, _LAYERS = 128, 4, 2


def mobilenet_v2(spec: DataSpec) -> Any:
    """Return MobileNetV2 of keras.applications without weights, compiled."""
    keras: Any = tf.keras
    pixels = keras.layers.Rescaling(1 / 127.5, -1)(inputs := keras.Input(spec.shape))
    network = keras.applications.MobileNetV2(
        input_tensor=pixels, input_shape=spec.shape, weights=None, classes=spec.classes
    )
    model = keras.Model(inputs, network.output)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def transformer(spec: DataSpec) -> Any:
    """Return a small transformer of Keras' own layers, compiled."""
    keras: Any = tf.keras
    layers = keras.layers
    x = layers.Embedding(spec.vocabulary, _WIDTH)(tokens := keras.Input(spec.shape, dtype="int32"))
    for _ in range(_LAYERS):
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(attention))
        hidden = layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(hidden))
    outputs = layers.Dense(spec.classes)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(tokens, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def _arrays(name: str) -> Arrays:
    random = np.random.default_rng(0)
    labels = random.integers(0, _CLASSES, _EXAMPLES).astype(np.int32)
    labels[:_CLASSES] = range(_CLASSES)
    if name == "transformer":
        return random.integers(1, _VOCABULARY, (_EXAMPLES, 64)).astype(np.int32), labels
    return random.integers(0, 256, (_EXAMPLES, 32, 32, 3)).astype(np.uint8), labels


def model(name: str, folder: str) -> None:
    """Measure the trainer and Keras with the model NAME; keep data in `folder`."""
    arrays = _arrays(name)
    file = Path(folder).with_suffix(".py")
    file.write_text(f"from bench.programs import {name} as create_model\n", encoding="utf-8")
    definition = load_model(str(file))
    write_arrays(folder, train=arrays, test=tuple(each[:_MODEL_BATCH] for each in arrays))
    data = open_data(folder)
    spec = data.manifest.input_spec(0)
    trainer = ours(definition, data, _MODEL_BATCH, 1, _MODEL_STEPS)

    def fit(steps_per_execution: int) -> Trainer:
        model = definition.create_model(definition.params(), spec, 0)
        return keras_fit(model, arrays, _MODEL_BATCH, _MODEL_STEPS, steps_per_execution)

    print_rates(trainer, fit, _MODEL_STEPS_PER_EXECUTION, _MODEL_STEPS, _MODEL_ROUNDS)


# --- How long no loop of steps runs in a job, between its first and its last.


def loops(data: str, model_dir: str) -> None:
    """Train half an epoch; no checkpoint is due before the end."""
    times: list[tuple[float, float]] = []
    run = train.run_loop

    def timed(*arguments: object) -> object:
        begun = time.perf_counter()
        figures = run(*arguments)  # type: ignore[arg-type]
        times.append((begun, time.perf_counter()))
        return figures

    vars(train)["run_loop"] = timed
    settings: dict[str, Any] = {"steps_per_loop": 20, "global_batch_size": 64, "epochs": 0.5}
    fit("mnist_cnn", data=data, model_dir=model_dir, checkpoint_interval=1 << 30, **settings)
    # The first loop compiles the step; what it is counted for is handled during the second.
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(times[1:])]
    whole = times[-1][1] - times[1][1]
    print(json.dumps({"share": sum(gaps) / whole}))


# --- How long a save holds the steps, against a copy in this machine's memory; what it takes of it.
# The variables lie on a part of a worker's processor, and its first part is their host. What moves
# from one to the other shares memory: a TPU's way to its host's is not in the figure.

_VARIABLES, _NUMBERS, _SAVES = 600, 500_000, 3


def save(endpoint: str, folder: str) -> None:
    """Save some times; the first time compiles the copy."""
    cluster = connect(Addresses((endpoint.removeprefix("grpc://"),), "bench"), Wait(), 0)
    host = "/job:worker/replica:0/task:0/device:CPU:0"
    vars(checkpoints)["host_of"] = lambda device: host
    with tf.device(host.replace("CPU:0", "CPU:1")):
        variables = [tf.Variable(tf.ones((_NUMBERS,))) for _ in range(_VARIABLES)]
    checkpoint = tf.train.Checkpoint(variables=variables)
    # More than a processor's caches hold.
    source, target = np.ones((2, 50 * _NUMBERS), np.float32)
    state, usage = 4 * _NUMBERS * _VARIABLES, partial(resource.getrusage, resource.RUSAGE_SELF)
    before = usage().ru_maxrss
    writer = CheckpointWriter(checkpoint, cluster, {folder: 1}, lambda: None)
    pairs = []
    for number in range(_SAVES + 1):
        begun = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        writer.save(folder, number)
        held = time.perf_counter() - copied
        writer.wait()
        pairs.append((held, (copied - begun) * state / source.nbytes))
    took, memory = compare(pairs[1:]), 1024 * (usage().ru_maxrss - before) / state
    print(json.dumps({"held": took.first, "copy": took.ratio, "memory": memory}))


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program for program in (checkpoint, network, model, loops, save)
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
