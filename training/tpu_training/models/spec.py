"""What a model knows of its dataset, and what a task is: loss, targets, metrics. No TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

from tpu_training.errors import InputError

# What a dataset holds besides the features of each example: a class, a yes or no for each of its
# names, numbers, a class for each token, a class for each pixel, or nothing.
CLASS, LABELS, NUMBERS = "class", "labels", "numbers"
TOKEN_CLASSES, MASK, NOTHING = "token_classes", "mask", "nothing"
TARGETS = (CLASS, LABELS, NUMBERS, TOKEN_CLASSES, MASK, NOTHING)
# Several targets by name.
SEVERAL = "several"
# What every TPU computes with; float64 becomes float32, as in Keras.
DTYPES = (
    *("bfloat16", "float32", "float64", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"),
)
# The class of a token or pixel that is not counted.
IGNORED = -1


@dataclass(frozen=True)
class DataSpec:
    """The features of an example, and the number of classes.

    Attributes:
        kind: `image`, `text`, or `array` for features of any other shape and type.
        shape: The shape of the input pipeline's features: (height, width, channels) or (length,).
        dtype: Their type: uint8 for images, int32 for token ids.
        classes: The number of classes; labels are 0 to `classes` - 1. For targets of `labels` and
            `numbers`, how many there are.
        vocabulary: The number of tokens; ids are 0 to `vocabulary` - 1.
        targets: What the dataset holds to learn, one of TARGETS.
        outputs: The shape of a model's output for an example; () stands for (classes,).
        causal: Whether no output may depend on later tokens.
        start: The token with which each text begins, where an example has several; -1 where it
            has one.
        end: The token with which each text ends; -1 where none is known.
        padding: The token that fills an example, and is no part of a text.
        inputs: The name, shape and type of each input, if the features are a dictionary of
            several; `shape` and `dtype` are empty then.
        several: The same of each target, if the targets are a dictionary: `targets` is SEVERAL.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    vocabulary: int = 0
    targets: str = CLASS
    outputs: tuple[int, ...] = ()
    causal: bool = False
    start: int = -1
    end: int = -1
    padding: int = 0
    inputs: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    several: tuple[tuple[str, tuple[int, ...], str], ...] = ()

    def features(self, make: Callable[[tuple[int, ...], str], Any]) -> Any:
        """Return what `make` makes of the shape and type of the features, by name if several."""
        if self.inputs:
            return {name: make(shape, dtype) for name, shape, dtype in self.inputs}
        return make(self.shape, self.dtype)

    def target(self, make: Callable[[tuple[int, ...], str], Any]) -> Any:
        """Return what `make` makes of the shape and type of the targets, by name if several."""
        if self.several:
            return {name: make(shape, dtype) for name, shape, dtype in self.several}
        return make(self.target_shape, self.target_dtype)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of a model's output for an example."""
        return self.outputs or (self.classes,)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of an example's targets."""
        shapes = {
            LABELS: (self.classes,),
            NUMBERS: (self.classes,),
            TOKEN_CLASSES: self.shape,
            MASK: self.shape[:2],
        }
        return shapes.get(self.targets, ())

    @property
    def target_dtype(self) -> str:
        """Their type."""
        return "float32" if self.targets == NUMBERS else "int32"


def image_shape(spec: DataSpec) -> tuple[int, int, int]:
    """Return (height, width, channels). Raises InputError if the dataset has no images."""
    if spec.kind != "image":
        raise InputError(f"--model takes images, but the dataset has {spec.kind}; choose another")
    height, width, channels = spec.shape
    return height, width, channels


def text_length(spec: DataSpec) -> int:
    """Return the tokens per example. Raises InputError if the dataset has no texts."""
    if spec.kind != "text":
        raise InputError(f"--model takes text, but the dataset has {spec.kind}s; choose another")
    (length,) = spec.shape
    return length


def flat_outputs(spec: DataSpec, model: str) -> int:
    """Return how many numbers `model` gives for an example. Raises InputError for more axes."""
    if len(spec.output_shape) != 1:
        raise InputError(
            f"--model={model} returns one row of numbers for an example, but the task needs the "
            f"shape {spec.output_shape}; choose another model, or write one"
        )
    return spec.output_shape[0]


# A task: what a training learns of the dataset.

# (outputs, targets, params) -> the loss of each example, float32 (batch,)
Losses = Callable[[Any, Any, Any], Any]
# (outputs, targets, weights) -> the batch's sums: a tensor of a fixed shape, or several
Sums = Callable[[Any, Any, Any], Any]
# (features, targets, training) -> (features, targets), on the device
Prepare = Callable[[Any, Any, bool], tuple[Any, Any]]
# (model, (features, targets), StepContext) -> the loss of each example, and metrics by name
Step = Callable[[Any, tuple[Any, Any], Any], tuple[Any, Mapping[str, Any]]]


@dataclass(frozen=True)
class Metric:
    """A figure that is counted over all examples, however they are spread over batches.

    Attributes:
        name: Its name in the log, in `metrics.json`, in TensorBoard and in the report.
        sums: Maps outputs, targets and weights (batch,) of a batch to its sums. An example of
            weight 0 only fills the batch. Integers are added up in int64, so that none is lost,
            and float64 in float64.
        value: Turns the sums over all examples, numpy arrays, into the figure; None for what is no
            number, such as a confusion, which is kept as it is.
        in_training: Whether it is counted in each training step, too.
    """

    name: str
    sums: Sums
    value: Callable[[Any], float] | None = None
    in_training: bool = True


def mean(sums: Any) -> float:
    """Return the first sum divided by the second, 0 for none: the `value` of most metrics."""
    return float(sums[0]) / float(sums[1]) if sums[1] else 0.0


@dataclass(frozen=True)
class Task:
    """What a training learns.

    Attributes:
        name: Its name.
        losses: Maps outputs, targets and the job's params to the loss of each example, float32
            (batch,). A task without them, which needs a `step`, can't evaluate.
        metrics: Maps the model's spec to what is counted besides the loss.
        targets: What the dataset must hold, one of TARGETS.
        any_targets: Whether it makes its targets itself, whatever the dataset holds.
        model_spec: Maps the dataset's spec to the model's: the shape of what `prepare` gives and
            of the outputs.
        prepare: Makes features and targets on the device, with the step's seed.
        predictions: Maps the outputs to what `predict` and an exported model give, by name.
        best: The metric, or `loss`, by which the best checkpoint is chosen.
        higher_is_better: Whether a greater value of it is better.
        gives_classes: Whether the greatest output is the class of the example.
        shares: Maps targets to how much each example counts in the mean loss, float32 (batch,),
            such as its number of tokens; None lets each count once.
        step: A training step of one's own: maps the model, a replica's features and targets, and
            the context of the step (models/step_context.py) to the loss and to metrics by name.
            Each is a number or one for each example; the mean over the global batch counts. With
            `optimizers`, the loss is a dictionary: the loss of each part.
        optimizers: Parts of the model that have their own optimizer, such as a GAN's two, each with
            the parameters that it does not share with the job, such as {"learning_rate": 0.01}.
        own: Whether it is a user's, whose functions are checked and compiled by AutoGraph.
        file: The user's file that it comes from.
    """

    name: str
    losses: Losses | None = None
    metrics: Callable[[DataSpec], Sequence[Metric]] = lambda spec: ()
    targets: str = CLASS
    any_targets: bool = False
    model_spec: Callable[[DataSpec], DataSpec] = lambda spec: spec
    prepare: Callable[[DataSpec], Prepare] | None = None
    predictions: Callable[[Any], Mapping[str, Any]] = lambda outputs: {"outputs": outputs}
    best: str = "loss"
    higher_is_better: bool = False
    gives_classes: bool = False
    shares: Callable[[Any], Any] | None = None
    step: Step | None = None
    optimizers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own: bool = True
    file: str = ""

    def better(self, figures: Mapping[str, float], than: Mapping[str, float]) -> bool:
        """Return whether `figures` are better than others; NaN never is."""
        new, old = figures[self.best], than.get(self.best, nan)
        if isnan(old):
            return not isnan(new)
        return new > old if self.higher_is_better else new < old
