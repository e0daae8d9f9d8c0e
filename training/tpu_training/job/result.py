"""What a job hands back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class Result:
    """What a job hands back.

    Attributes:
        summary: A line with the main figures.
        metrics: What stands in `metrics.json`: `test_loss`, `test_accuracy`, `steps` and so on.
        history: A row for each loop of steps: `step`, `loss`, `learning_rate` and the task's
            metrics. `pandas.DataFrame(result.history)` is a table of it.
        model: The model whose figures are in `metrics`, with averaged weights under `ema_decay`;
            call it with (features, training=False).
        model_dir: Where checkpoints, events and the report are.
        predict: Maps features (examples, …), as those of the data, to what the model says of them,
            NumPy arrays by name: compiled, in batches, on the devices that trained it. For classes:
            `probabilities`, float32 (examples, classes), and `classes`, int32 (examples,). Other
            tasks: see their `predictions`.
    """

    summary: str
    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    model: "tf.Module"
    model_dir: str
    predict: Callable[[Any], dict[str, Any]]
