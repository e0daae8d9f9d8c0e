"""What a task is: the loss, the targets and the metrics of a training. Loads no TensorFlow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from tpu_training.models.spec import CLASS, DataSpec

# (outputs, targets, params) -> the loss of each example, float32 (batch,)
Losses = Callable[[Any, Any, Any], Any]
# (outputs, targets, weights) -> the batch's sums: a tensor of a fixed shape, or several
Sums = Callable[[Any, Any, Any], Any]
# (features, targets, training) -> (features, targets), on the device
Prepare = Callable[[Any, Any, bool], tuple[Any, Any]]


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
            (batch,).
        metrics: Maps the model's spec to what is counted besides the loss.
        targets: What the data set must hold, one of tpu_training.models.spec.TARGETS.
        any_targets: Whether it makes its targets itself, whatever the data set holds.
        model_spec: Maps the data set's spec to the model's: the shape of what `prepare` gives and
            of the outputs.
        prepare: Makes features and targets on the device, with the step's seed.
        predictions: Maps the outputs to what `predict` and an exported model give, by name.
        best: The metric, or `loss`, by which the best checkpoint is chosen.
        higher_is_better: Whether a greater value of it is better.
        gives_classes: Whether the greatest output is the class of the example.
        own: Whether it is a user's, whose functions are checked and compiled by AutoGraph.
        file: The user's file that it comes from.
    """

    name: str
    losses: Losses
    metrics: Callable[[DataSpec], Sequence[Metric]] = lambda spec: ()
    targets: str = CLASS
    any_targets: bool = False
    model_spec: Callable[[DataSpec], DataSpec] = lambda spec: spec
    prepare: Callable[[DataSpec], Prepare] | None = None
    predictions: Callable[[Any], Mapping[str, Any]] = lambda outputs: {"outputs": outputs}
    best: str = "loss"
    higher_is_better: bool = False
    gives_classes: bool = False
    own: bool = True
    file: str = ""

    def better(self, figures: Mapping[str, float], than: Mapping[str, float]) -> bool:
        """Return whether `figures` are better than others; NaN never is."""
        new, old = figures[self.best], than.get(self.best, nan)
        if isnan(old):
            return not isnan(new)
        return new > old if self.higher_is_better else new < old
