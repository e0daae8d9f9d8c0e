"""What a job hands back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_training.models.task import Task

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
        model: The trained model; call it with (features, training=False).
        model_dir: Where checkpoints, events and the report are.
    """

    summary: str
    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    model: "tf.Module"
    model_dir: str
    task: Task

    def predict(self, features: Any) -> dict[str, Any]:
        """Return what the model says of `features` (examples, …), as NumPy arrays by name.

        For classes: `probabilities`, float32 (examples, classes), and `classes`, int32
        (examples,). Other tasks: see their `predictions`.
        """
        import tensorflow as tf

        outputs = self.model(tf.convert_to_tensor(features), training=False)
        return {name: value.numpy() for name, value in self.task.predictions(outputs).items()}
