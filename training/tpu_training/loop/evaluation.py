"""Evaluate exactly over a whole split, and predict single examples, over all replicas."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, function, manifest, pipeline, tokenizer as tokenizers
from tpu_training.errors import DataError, InputError
from tpu_training.loop import graph, train
from tpu_training.loop.state import ModelState, Tables, averaged
from tpu_training.loop.step import create_sums
from tpu_training.models.params import Params
from tpu_training.models.spec import CLASS, MASK, TOKEN_CLASSES, DataSpec
from tpu_training.models.step_context import split_weights

# TensorFlow's words for a dataset that ends before its announced number of batches.
_TOO_FEW = "was expected to contain"
# Examples of a Dataset that are predicted at a time.
_PREDICTED = 1024
# This many sums in float32 lose no digit that is shown; the host adds in double precision.
_MOST_STEPS = 1000

# features, labels, weights -> the sums of the losses, of what the examples count, and of the
# metrics' numbers; the number of examples and the metrics' counts
ReplicaEvaluation = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
# number of steps -> the sums over all of them
EvaluationLoop = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
# features (examples, …) -> arrays by name
Predict = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Evaluation:
    """Mean loss and metrics over the `examples` examples of `split`.

    `tables` are metrics that are not single numbers, such as `confusion`: examples by true and by
    predicted class.
    """

    loss: float
    metrics: dict[str, float]
    examples: int
    tables: Tables
    split: str = manifest.TEST

    @property
    def figures(self) -> dict[str, float]:
        """The loss and the metrics by name."""
        return {"loss": self.loss, **self.metrics}

    @property
    def scalars(self) -> dict[str, float]:
        """The values by their TensorBoard tags."""
        return {f"{self.split}/{name}": value for name, value in self.figures.items()}


def create_evaluation(
    cluster: Cluster,
    params: Params,
    data: data_set.DataSet,
    state: ModelState,
    split: str = manifest.TEST,
    check: Callable[[], None] = lambda: None,
    create_loop: Callable[..., tuple[EvaluationLoop, int]] | None = None,
) -> Callable[[], Evaluation]:
    """Return a function that evaluates the state's model, with averaged weights if it has any.

    The first call compiles it, by `create_loop` for other devices than TensorFlow's. It calls
    `check` between loops of some seconds at most. Every example of `split` counts exactly once, if
    no parameter limits the batches. The function raises DataError if the files hold another number
    of examples than the manifest has.
    """
    expected = data.manifest.split(split).examples
    create_loop = create_loop or create_evaluation_loop

    @functools.cache
    def compiled() -> tuple[EvaluationLoop, int]:
        return create_loop(cluster, params, state, data, split)

    def evaluate() -> Evaluation:
        held: int | str
        try:
            with averaged(cluster, state.average):
                numbers, counts = _sum_up(cluster, *compiled(), check)
            held = int(counts[0])
        except tf.errors.FailedPreconditionError as error:
            if _TOO_FEW not in str(error):
                raise
            held = "other"
        if held != expected and not params.limit_batches:
            raise DataError(
                f"the {split} files in {data.directory} have {held} examples, but the manifest "
                f"lists {expected}; copy the dataset there again"
            )
        metrics, tables = state.evaluated.figures(numbers[2:], counts[1:])
        loss = float(numbers[0] / numbers[1]) if numbers[1] else 0.0
        return Evaluation(loss, metrics, int(held), tables, split)

    return evaluate


def _sum_up(
    cluster: Cluster, loop: EvaluationLoop, steps: int, check: Callable[[], None]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sums of the numbers of `steps` batches, and of their counts."""
    with cluster.on_loop_device():
        numbers, counts = (each.numpy() for each in loop(tf.constant(1)))
        numbers = numbers.astype(np.float64)
        done, pace = 1, train.Pace()
        while done < steps:
            check()
            count, begun = min(_MOST_STEPS, pace.most, steps - done), time.monotonic()
            more = loop(tf.constant(count))
            numbers, counts = numbers + more[0].numpy(), counts + more[1].numpy()
            # All hosts do as many, as the slowest one can.
            pace.add(count, *cluster.agree(time.monotonic() - begun))
            done += count
    return numbers, counts


def create_evaluation_loop(
    cluster: Cluster, params: Params, state: ModelState, data: data_set.DataSet, split: str
) -> tuple[EvaluationLoop, int]:
    """Compile a function that sums up a number of batches; return how many there are, too.

    The replicas add to variables of their own, so that nothing leaves the devices in a step. Counts
    are integers: float32 knows no odd number above 16.7 million.
    """
    next_batch, steps = pipeline.evaluation_batches(data, cluster, params, split)
    strategy = cluster.strategy
    replica_evaluation = create_replica_evaluation(params, state)
    tally = state.evaluated
    with strategy.scope():
        numbers = create_sums((2 + tally.numbers,), tally.dtype)
        counts = create_sums((1 + tally.counts,), tf.int64)

    def replica_step(*batch: tf.Tensor) -> None:
        number, count = replica_evaluation(*batch)
        numbers.assign_add(number)
        counts.assign_add(count)

    def step(_: tf.Tensor, nothing: tuple[()]) -> tuple[()]:
        strategy.run(replica_step, next_batch())
        return nothing

    def loop(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        for sums in (numbers, counts):
            sums.assign(tf.zeros(sums.shape, sums.dtype), read_value=False)
        graph.repeat(count, (), step)
        return numbers.read_value(), counts.read_value()

    compiled: EvaluationLoop = tf.function(loop, autograph=False)
    return compiled, steps


def create_replica_evaluation(params: Params, state: ModelState) -> ReplicaEvaluation:
    """Return the evaluation of one replica's share of a batch, as sums over its examples.

    The last batch is filled up with examples of the weight 0, since a TPU takes one shape only.
    """
    # Smoothed labels help training; the reported loss is that of the true ones.
    unsmoothed = dataclasses.replace(params, label_smoothing=0.0)

    def replica_step(
        features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        targets, given = split_weights(labels)
        inputs, targets = state.prepare(features, targets, False)
        outputs = state.scored(inputs, training=False)
        losses = state.losses(outputs, targets, unsmoothed)
        shares = weights * state.task.shares(targets) if state.task.shares else weights
        sums = [tf.reduce_sum(each) for each in (losses * given * shares, shares)]
        loss = tf.cast(tf.stack(sums), state.evaluated.dtype)
        examples = tf.reduce_sum(tf.cast(weights, tf.int64))
        numbers, counts = state.evaluated.count(outputs, targets, weights)
        return tf.concat([loss, numbers], 0), tf.concat([examples[None], counts], 0)

    return replica_step


def evaluate_given(
    cluster: Cluster, params: Params, state: ModelState, spec: DataSpec, given: Any
) -> dict[str, float]:
    """Return loss and metrics over the examples `given`, or over the test split of a dataset.

    Args:
        cluster: What computes.
        params: Those of the training.
        state: The model; its weights are taken as they are.
        spec: The data that it was trained with.
        given: A dataset's place, (features, targets), a tf.data.Dataset or a PyDataset.

    Raises:
        InputError: They are of another form than `spec`, or the task has no losses.
    """
    names = spec.targets in (CLASS, MASK, TOKEN_CLASSES) and map(str, range(spec.classes))
    split = manifest.TEST if isinstance(given, str) else manifest.TRAIN
    with tf.device(cluster.this_process):
        if isinstance(given, str):
            data = data_set.open_given(given, params.seed)
        else:
            made = data_set.given_function({split: given}, tuple(names or ()), shuffles=False)
            data = data_set.of_function(made, "data", params.seed)
    found = data.manifest.input_spec(params.image_size)
    if found.vocabulary <= spec.vocabulary:
        found = dataclasses.replace(found, vocabulary=spec.vocabulary)
    if not isinstance(given, str):
        found = dataclasses.replace(found, end=spec.end, padding=spec.padding)
    if state.task.any_targets:
        found = dataclasses.replace(found, targets=spec.targets, classes=spec.classes)
    # A model of packed texts takes one as well.
    found = found if found.start >= 0 else dataclasses.replace(found, start=spec.start)
    if found != spec:
        raise InputError(
            f"data: has {function.in_words(found)}, but the model was trained with "
            f"{function.in_words(spec)}"
        )
    kept = dataclasses.replace(state, average=None)
    try:
        return create_evaluation(cluster, params, data, kept, split)().figures
    except tf.errors.OpError as error:
        raise function.explain(error, data.directory) or error from error


def predict_given(predict: Predict, given: Any) -> dict[str, Any]:
    """Return the predictions for features, or for those in a tf.data.Dataset or a PyDataset."""
    if not (isinstance(given, tf.data.Dataset) or hasattr(given, "num_batches")):
        return predict(given)
    made = data_set.given_function({manifest.TRAIN: given}, shuffles=False)
    rows = made(manifest.TRAIN, 0)
    assert rows is not None
    batches = rows.batch(_PREDICTED).as_numpy_iterator()
    parts = [predict(each[0] if isinstance(each, tuple) else each) for each in batches]
    if not parts:
        raise InputError("data: is empty; there is nothing to predict")
    return joined(parts)


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the predictions of all `parts`, in their order."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def create_prediction(
    cluster: Cluster,
    params: Params,
    state: ModelState,
    spec: DataSpec,
    vocabulary: tuple[str, bytes],
) -> Predict:
    """Return a function that gives the task's predictions for features of the data's `spec`.

    Texts become ids by the tokenizer whose file's name and content are `vocabulary`. All pass
    through what an evaluation's pass through, in batches of at most its size.

    Raises:
        InputError: The features have another shape or type than the data's.
    """
    most = params.replica_batch_size(cluster.replicas, "evaluation_batch_size")

    def replica(features: Any) -> dict[str, tf.Tensor]:
        examples = tf.nest.flatten(features)[0].shape[0]
        targets = spec.target(lambda shape, dtype: tf.zeros((examples, *shape), dtype))
        inputs, _ = state.prepare(features, targets, False)
        return dict(state.task.predictions(state.forward(inputs, training=False)))

    compiled = tf.function(lambda rows: cluster.strategy.run(replica, (rows,)), autograph=False)

    def predict(features: Any) -> dict[str, Any]:
        given = features_of(ids_of(features, spec, vocabulary), spec)
        count = len(tf.nest.flatten(given)[0])
        # Of few sizes, as each is compiled.
        wanted = -(-count // cluster.replicas)
        share = min(most, 1 << max(0, wanted - 1).bit_length())
        size = share * cluster.replicas
        missing = -count % size or size * (not count)
        filled = tf.nest.map_structure(
            lambda each: np.pad(each, [(0, missing)] + [(0, 0)] * (each.ndim - 1)), given
        )

        def rows(begin: int) -> Any:
            return tf.nest.map_structure(lambda each: each[begin : begin + size], filled)

        found = [_run(cluster, compiled, rows(at)) for at in range(0, count + missing, size)]
        return {name: values[:count] for name, values in joined(found).items()}

    return predict


def ids_of(given: Any, spec: DataSpec, vocabulary: tuple[str, bytes]) -> Any:
    """Return the ids of texts, as in the training, and anything else as it is."""
    if spec.kind != "text" or np.asarray(given).dtype.kind not in "SUO":
        return given
    try:
        tokenizer = tokenizers.tokenizer_of(*vocabulary)
    except ValueError as error:
        raise InputError(
            f"features: are texts, but the model's vocabulary {error}; pass token ids"
        ) from error
    texts = map(tf.compat.as_text, np.ravel(given))
    return np.array([tokenizer.encode(text, spec.shape[0]) for text in texts], np.int32)


def features_of(given: Any, spec: DataSpec) -> Any:
    """Return `given` as arrays of the types of `spec`. Raises InputError where they don't fit."""

    def array(values: Any, shape: tuple[int, ...], dtype: str, path: str) -> npt.NDArray[Any]:
        found, wanted = np.asarray(values), tf.as_dtype(dtype)
        kinds = "iub" if wanted.is_integer or wanted == tf.bool else "iubfV"
        if found.shape[1:] != shape or not found.ndim or found.dtype.kind not in kinds:
            raise InputError(
                f"{path}: {found.dtype} of the shape {found.shape}, expected {dtype} of the shape "
                f"(examples, {', '.join(map(str, shape))}) as in the dataset"
            )
        return found.astype(wanted.as_numpy_dtype)

    if not spec.inputs:
        return array(given, spec.shape, spec.dtype, "features")
    names = [name for name, _, _ in spec.inputs]
    if not isinstance(given, Mapping) or sorted(given) != sorted(names):
        raise InputError(f"features: expected a dictionary of {', '.join(names)} as in the dataset")
    made = {n: array(given[n], shape, dtype, f"features/{n}") for n, shape, dtype in spec.inputs}
    if len({len(values) for values in made.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(values)}" for name, values in made.items())
        raise InputError(f"features have different numbers of examples ({lengths})")
    return made


def _run(cluster: Cluster, compiled: Callable[..., Any], rows: Any) -> dict[str, Any]:
    """Return what `compiled` gives for `rows`, dealt out to the replicas."""
    strategy = cluster.strategy

    def deal(values: npt.NDArray[Any]) -> tf.Tensor:
        parts = np.split(values, cluster.replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )

    with cluster.on_loop_device():
        given = compiled(tf.nest.map_structure(deal, rows))
    return {
        name: np.concatenate([part.numpy() for part in strategy.experimental_local_results(value)])
        for name, value in given.items()
    }
