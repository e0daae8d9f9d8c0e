"""The state of a training: model, optimizer, step, averaged weights, metrics, mixed examples."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tpu_training.loop.optimizers as optimizers
from tpu_training import errors, tasks
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.manifest import Manifest
from tpu_training.loop import graph
from tpu_training.models import model as models
from tpu_training.models.keras import KerasModule
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.models.spec import (
    MASK,
    TOKEN_CLASSES,
    DataSpec,
    Losses,
    Metric,
    Prepare,
    Step,
    Task,
)
from tpu_training.models.step_context import next_seed

# A variable for their sums is created before the step is traced.
_MOST_METRICS = 16
# The confusion of classes, nested by true and predicted class.
Tables = dict[str, list[Any]]
# images -> images, and the share of each one's own label
Mix = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """A model with its task: what an evaluation and a prediction need.

    `forward` maps (features, training) to outputs in a graph, with AutoGraph if the model needs it.
    `scored` maps them to what losses and metrics take: outputs, or large logits in pieces.
    `losses` and `prepare` are the task's, and `evaluated` counts its metrics; see models/spec.py.
    """

    model: tf.Module
    losses: Losses
    forward: Callable[..., tf.Tensor]
    scored: Callable[..., Any]
    task: Task
    prepare: Prepare
    evaluated: Tally
    average: WeightAverage | None = None

    @property
    def evaluates(self) -> bool:
        """Whether it has losses: a task with a step of its own may have none."""
        return self.losses is not _no_losses


@dataclass(frozen=True, kw_only=True)
class TrainState(ModelState):
    """The variables of a training job, mirrored over the cluster's replicas.

    `variables` are those of the model that are trained, at `paths`; the ids of those that must
    keep their values are in `frozen`, and those that checkpoints don't hold in `unsaved`. If the
    job wants that, `average` follows them and `mix` mixes examples.
    `parts` has the places of those of each part of the model with a loss and an optimizer of its
    own, or of all under "".
    `own_step` is the task's, and `counted` counts the metrics in training.
    """

    optimizer: optimizers.Optimizer
    step: tf.Variable
    counted: Tally
    variables: Sequence[tf.Variable]
    paths: Sequence[str]
    parts: Mapping[str, Sequence[int]]
    frozen: frozenset[int] = frozenset()
    unsaved: Sequence[tf.Variable] = ()
    mix: Mix | None = None
    own_step: Step | None = None


def _no_losses(outputs: Any, targets: Any, params: Any) -> Any:
    raise errors.InputError("the task has no losses, so it can't evaluate; give it losses")


def create_train_state(
    cluster: Cluster, definition: ModelDefinition, params: Params, manifest: Manifest, steps: int
) -> TrainState:
    """Initialise the state on the cluster's devices, for a run of `steps` steps.

    Variables are created in the strategy's scope, so that each replica has its own copy. What is
    the user's (model, losses, metrics) is checked once and traced with AutoGraph.

    Raises:
        InputError: The model, its task or its optimizer do not fit the data or the parameters.
    """
    schedule = optimizers.create_schedule(params, steps)
    resolved = dataclasses.replace(params, precision=compute_dtype(params, cluster).name)
    data_spec = manifest.input_spec(params.image_size)
    task = tasks.task_of(definition, data_spec)
    spec = task.model_spec(data_spec)
    with cluster.strategy.scope():
        seed = derive_seed(params.seed, "weights")
        model = models.create_model(definition, resolved, spec, seed)
        models.check_model(model, definition.create_model)
        chosen = optimizers.choose_variables(params, model)
        parts = optimizers.parts_of(task.optimizers, chosen.paths)
        if task.optimizers:
            optimizer = optimizers.PartedOptimizer(params, chosen, steps, task.optimizers, parts)
        else:
            compiled = optimizers.compiled_optimizer(params, model, chosen.trained)
            optimizer = compiled or optimizers.create_optimizer(params, chosen, schedule)
        decay = params.ema_decay
        constant = chosen.frozen.union(map(id, chosen.unsaved))
        average = WeightAverage(model, constant, decay) if decay else None
        step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="step",
        )
    if isinstance(model, KerasModule):
        model.freeze(chosen.frozen)
    answers = create_model_state(definition, model, task, data_spec)
    task = answers.task
    own_step = task.step and models.checked_step(
        graph.with_autograph(task.step), task.step, task.optimizers
    )
    mix = create_mix(params, data_spec)
    if own_step and mix:
        raise errors.InputError(
            f"the task {task.name} has a step of its own, in which --mixup and --cutmix change "
            "nothing; mix the examples there"
        )
    return TrainState(
        **{**vars(answers), "average": average},
        optimizer=optimizer,
        step=step,
        counted=StepTally()
        if own_step
        else create_tally(task, data_spec, spec, answers.forward, training=True),
        variables=chosen.trained,
        paths=chosen.paths,
        parts=parts,
        frozen=chosen.frozen,
        unsaved=chosen.unsaved,
        mix=mix,
        own_step=own_step,
    )


def create_model_state(
    definition: ModelDefinition, model: tf.Module, task: Task, data_spec: DataSpec
) -> ModelState:
    """Return what `model` answers, for examples of `data_spec`; call outside of a scope.

    Raises:
        InputError: The task, or what the model was compiled with, does not fit.
    """
    spec = task.model_spec(data_spec)
    if isinstance(model, KerasModule):
        task = models.compiled_task(task, model, data_spec, named=bool(definition.task))
    losses = definition.losses or task.losses
    if not (losses or task.step):
        cure = "; give it one"
        if data_spec.several:
            names = ", ".join(f"'{name}': …" for name, *_ in data_spec.several)
            cure = f": compile a Keras model with loss={{{names}}}, or pass task=Task(…)"
        raise errors.InputError(f"the task {task.name} has neither losses nor a step{cure}")
    forward = model
    if definition.own and not isinstance(model, KerasModule):
        forward = models.checked_forward(graph.with_autograph(model), model, spec)
    if losses and ((definition.losses and definition.own) or task.own):
        losses = models.checked_losses(graph.with_autograph(losses), losses)
    if task.own and task.shares:
        shares = models.checked_shares(graph.with_autograph(task.shares), task.shares)
        task = dataclasses.replace(task, shares=shares)
    prepare = task.prepare or (lambda spec: lambda features, targets, _: (features, targets))
    own = definition.own or definition.losses or task.own
    return ModelState(
        model=model,
        losses=losses or _no_losses,
        forward=forward,
        # A user's losses and metrics know no pieces.
        scored=forward if own or not task.shares else getattr(model, "in_pieces", forward),
        task=task,
        prepare=prepare(data_spec),
        evaluated=create_tally(task, data_spec, spec, forward, training=False),
    )


def compute_dtype(params: Params, cluster: Cluster) -> tf.DType:
    """Return the type of the model's arithmetic: bfloat16 is fast on TPUs and slow on CPUs."""
    if params.precision == "auto":
        return tf.bfloat16 if cluster.has_tpu else tf.float32
    return tf.dtypes.as_dtype(params.precision)


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 31-bit seed for `purpose`, such as ("weights",).

    It is a hash: with seed + 1, one purpose would share its numbers with another one of the job
    that has the next seed.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class Tally:
    """The sums of `metrics`, packed for a variable and unpacked into figures.

    Integers, and the numbers of float64, stay apart from float32: it knows no odd number above 16.7
    million.
    """

    def __init__(self, metrics: Sequence[Metric], sums: Sequence[Sequence[tf.TensorSpec]]) -> None:
        self._metrics, self._sums = metrics, sums
        flat = [spec for specs in sums for spec in specs]
        numbers = [spec.dtype for spec in flat if spec.dtype.is_floating]
        self.dtype = tf.float64 if tf.float64 in numbers else tf.float32
        sizes = [(spec.dtype.is_integer, math.prod(spec.shape)) for spec in flat]
        self.counts = sum(size for is_count, size in sizes if is_count)
        self.numbers = sum(size for is_count, size in sizes if not is_count)

    def count(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the numbers (numbers,) and the counts (counts,), int64, of a batch."""
        numbers = [tf.zeros((0,), self.dtype)]
        counts = [tf.zeros((0,), tf.int64)]
        for metric in self._metrics:
            for each in _as_tuple(metric.sums(outputs, targets, weights)):
                flat = tf.reshape(each, [-1])
                if each.dtype.is_integer:
                    counts.append(tf.cast(flat, tf.int64))
                else:
                    numbers.append(tf.cast(flat, self.dtype))
        return tf.concat(numbers, axis=0), tf.concat(counts, axis=0)

    def figures(
        self, numbers: npt.NDArray[Any], counts: npt.NDArray[Any]
    ) -> tuple[dict[str, float], Tables]:
        """Return the metrics of the sums by name, and those that are tables."""
        left = {True: counts, False: numbers}
        figures: dict[str, float] = {}
        tables: Tables = {}
        for metric, specs in zip(self._metrics, self._sums, strict=True):
            parts = []
            for spec in specs:
                kind, size = spec.dtype.is_integer, math.prod(spec.shape)
                parts.append(left[kind][:size].reshape(spec.shape))
                left[kind] = left[kind][size:]
            sums = parts[0] if len(parts) == 1 else tuple(parts)
            if metric.value is None:
                tables[metric.name] = np.asarray(sums).tolist()
            else:
                figures[metric.name] = float(metric.value(sums))
        return figures, tables


class StepTally(Tally):
    """Averages what a step of one's own returns by name; its first trace tells the names."""

    def __init__(self) -> None:
        self.dtype, self.numbers, self.counts = tf.float32, 1 + _MOST_METRICS, 0
        self._names: list[str] = []

    def count(
        self, outputs: Any, targets: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the numbers of `outputs`, values (examples,) by name; there are no counts."""
        self._names[:] = sorted(outputs)
        if len(self._names) > _MOST_METRICS:
            raise errors.InputError(
                f"the task's step returned {len(self._names)} metrics; return at most "
                f"{_MOST_METRICS}"
            )
        sums = [tf.reduce_sum(each) for each in (weights, *(outputs[n] for n in self._names))]
        return tf.pad(tf.stack(sums), [[0, self.numbers - len(sums)]]), tf.zeros((0,), tf.int64)

    def figures(
        self, numbers: npt.NDArray[Any], counts: npt.NDArray[Any]
    ) -> tuple[dict[str, float], Tables]:
        """Return the means by name."""
        pairs = zip(self._names, numbers[1:], strict=False)
        return {name: float(total / numbers[0]) for name, total in pairs}, {}


def create_tally(
    task: Task,
    spec: DataSpec,
    model_spec: DataSpec,
    forward: Callable[..., Any],
    *,
    training: bool,
) -> Tally:
    """Return the tally of the task's metrics for examples of `spec`; traces each of them.

    With several targets the model, `forward`, is traced, too: it alone knows its outputs.

    Raises:
        InputError: A metric of the user's own gives no sums; with its file and line.
    """
    outputs = tf.TensorSpec((None, *model_spec.output_shape))
    if spec.several:
        examples = spec.features(lambda shape, dtype: tf.TensorSpec((2, *shape), dtype))
        traced = tf.function(lambda each: forward(each, training=False), autograph=False)
        outputs = traced.get_concrete_function(examples).structured_outputs
    if not task.own:
        metrics = [m for m in task.metrics(model_spec) if m.in_training or not training]
        return Tally(metrics, [_specs(sums) for sums in _trace(task, metrics, spec, outputs, 2)])
    metrics = [
        dataclasses.replace(metric, sums=graph.with_autograph(metric.sums))
        for metric in models.checked_metrics(task, model_spec)
        if metric.in_training or not training
    ]
    # Two sizes of a batch show whether a metric gives sums, or something for each example.
    few, more = (_trace(task, metrics, spec, outputs, count) for count in (2, 3))
    originals = {metric.name: metric for metric in task.metrics(model_spec)}
    for metric, sums, others in zip(metrics, few, more, strict=True):
        models.check_sums(originals[metric.name], sums, others)
        if metric.value:
            ones = [np.ones(each.shape, each.dtype.as_numpy_dtype) for each in sums]
            models.check_value(metric, metric.value(ones[0] if len(ones) == 1 else tuple(ones)))
    return Tally(metrics, [_specs(sums) for sums in few])


def _trace(
    task: Task, metrics: Sequence[Metric], spec: DataSpec, outputs: Any, examples: int
) -> list[tuple[Any, ...]]:
    """Return the symbolic sums of each metric for a batch of `examples`.

    In a graph of its own, without a device: only shapes and types are wanted.
    """
    with tf.Graph().as_default():
        features = spec.features(lambda *each: _placeholder(examples, *each))
        targets = spec.target(lambda *each: _placeholder(examples, *each))
        made = tf.nest.map_structure(
            lambda each: _placeholder(examples, tuple(each.shape[1:]), each.dtype), outputs
        )
        weights = _placeholder(examples, (), "float32")
        if task.prepare:
            features, targets = task.prepare(spec)(features, targets, False)
        return [_as_tuple(metric.sums(made, targets, weights)) for metric in metrics]


def _placeholder(examples: int, shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    return tf.compat.v1.placeholder(dtype, (examples, *shape))


def _specs(sums: Sequence[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in sums]


def _as_tuple(sums: Any) -> tuple[Any, ...]:
    return tuple(sums) if isinstance(sums, tuple | list) else (sums,)


class WeightAverage(tf.Module):  # type: ignore[misc]
    """A second set of a model's weights that follows them, moving averages included.

    Averaging the statistics of batch normalisation too, as TensorFlow's Model Garden does
    (official/modeling/optimization/ema_optimizer.py), keeps them those of the averaged weights.
    """

    def __init__(self, model: tf.Module, frozen: frozenset[int], decay: float) -> None:
        """Start with the model's weights, except those in `frozen`; call in the strategy's scope.

        In the first steps the decay is (1 + step) / (10 + step), as of tf.train's average, so that
        the first weights are soon forgotten.
        """
        super().__init__()
        self._decay, self._strategy = decay, tf.distribute.get_strategy()
        followed = {
            path: variable
            for path, variable in models.variable_paths(model)
            if variable.dtype.is_floating and id(variable) not in frozen
        }
        self._followed = list(followed.values())
        self.shadows = {
            path: tf.Variable(tf.convert_to_tensor(variable), trainable=False, name="average")
            for path, variable in followed.items()
        }

    def update(self, step: tf.Tensor) -> None:
        """Follow the weights after `step`, counted from 0; call in replica context."""
        done = tf.cast(step, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        tf.distribute.get_replica_context().merge_call(self._update_all, args=(share,))

    def exchange(self) -> None:
        """Put the average into the model and the model's weights here, or back; as `update`."""
        tf.distribute.get_replica_context().merge_call(self._exchange_all)

    @cached_property
    def swap(self) -> Callable[[], object]:
        """What exchanges the two on all replicas, compiled once for all evaluations."""
        run = tf.function(lambda: self._strategy.run(self.exchange), autograph=False)
        return lambda: run()  # Held by a function: TensorFlow would save its own.

    def reset(self) -> None:
        """Start over with the model's weights."""
        for shadow, variable in zip(self.shadows.values(), self._followed, strict=True):
            shadow.assign(variable.read_value())

    def _update_all(self, strategy: tf.distribute.Strategy, share: tf.Tensor) -> None:
        for index, shadow in enumerate(self.shadows.values()):
            arguments = (self._followed[index], share)
            strategy.extended.update(shadow, _approach, args=arguments, group=True)

    def _exchange_all(self, strategy: tf.distribute.Strategy) -> None:
        for index, shadow in enumerate(self.shadows.values()):
            strategy.extended.update(shadow, _swap, args=(self._followed[index],), group=True)


@contextmanager
def averaged(cluster: Cluster, average: WeightAverage | None) -> Iterator[None]:
    """Let the model have its averaged weights; without an average those that it has."""
    if average is None:
        yield
        return
    cluster.fetch(to_change=True)
    with cluster.on_loop_device():
        average.swap()
    try:
        yield
    finally:
        cluster.fetch(to_change=True)
        with cluster.on_loop_device():
            average.swap()


def _approach(shadow: tf.Variable, variable: tf.Variable, share: tf.Tensor) -> None:
    value = tf.cast(tf.convert_to_tensor(variable), shadow.dtype)
    shadow.assign_add(tf.cast(share, shadow.dtype) * (value - shadow))


def _swap(shadow: tf.Variable, variable: tf.Variable) -> None:
    first, second = tf.identity(shadow.read_value()), tf.identity(variable.read_value())
    with tf.control_dependencies([first, second]):
        shadow.assign(second, read_value=False)
        variable.assign(first, read_value=False)


def create_mix(params: Params, spec: DataSpec) -> Mix | None:
    """Return what mixes the images of a batch's part with those of the reversed part.

    One share is drawn for the whole part, from Beta(a, a): of all pixels for mixup (Zhang et al.,
    arXiv:1710.09412), of the area for CutMix (Yun et al., arXiv:1905.04899). With both, half of
    the parts are mixed in each way. The seeds are the step's. None where neither is asked for.

    Raises:
        InputError: The examples are no images, or their targets have places of their own.
    """
    kinds = {"mixup": params.mixup, "cutmix": params.cutmix}
    tables = {name: _beta_quantiles(alpha) for name, alpha in kinds.items() if alpha}
    if not tables:
        return None
    if spec.kind != "image" or spec.targets in (MASK, TOKEN_CLASSES):
        raise errors.InputError(
            f"--{' --'.join(tables)}: for images with one label each, but the dataset has "
            f"{spec.kind}s with targets of the form {spec.targets}; omit it"
        )

    def mix(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        masks = []
        for name, table in tables.items():
            place = tf.random.stateless_uniform((), next_seed(), 0, len(table), tf.int32)
            mask = tf.fill(images.shape[1:3], tf.gather(table, place))
            masks.append(_outside_of_a_box(mask) if name == "cutmix" else mask)
        if len(masks) > 1:
            coin = tf.random.stateless_uniform((), next_seed()) < 0.5
            masks = [tf.where(coin, *masks)]
        share = masks[0][:, :, tf.newaxis]
        wide = tf.cast(images, tf.float32)
        mixed = share * wide + (1.0 - share) * wide[::-1]
        # Bytes stay bytes, which models expect; half a grey level is lost at most.
        mixed = tf.round(mixed) if images.dtype.is_integer else mixed
        return tf.cast(mixed, images.dtype), tf.reduce_mean(share)

    return mix


def _beta_quantiles(alpha: float) -> npt.NDArray[np.float32]:
    """Return quantiles of Beta(`alpha`, `alpha`) to draw from: TPUs have no kernel for it."""
    # The seed is always the same, so that a resumed job mixes alike.
    drawn = np.random.default_rng(0).beta(alpha, alpha, 1 << 20)
    return np.quantile(drawn, (np.arange(1 << 12) + 0.5) / (1 << 12)).astype(np.float32)


def _outside_of_a_box(shares: tf.Tensor) -> tf.Tensor:
    """Return 1 outside of a random box of the area 1 - share, clipped at the edges, 0 inside."""
    side = tf.sqrt(1.0 - shares[0, 0])
    centre = tf.random.stateless_uniform((2,), next_seed())
    inside = []
    for axis, size in enumerate(shares.shape):
        half = tf.floor(side * size) / 2.0
        middle = tf.floor(centre[axis] * size)
        places = tf.range(size, dtype=tf.float32)
        inside.append((places >= middle - half) & (places < middle + half))
    return 1.0 - tf.cast(inside[0][:, tf.newaxis] & inside[1], tf.float32)
