"""Callbacks: the host's work between two loops of steps, or during the next one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoopReport:
    """A loop of `count` steps that ended at `step` of `last_step`.

    Attributes:
        loss: The mean over the loop's examples.
        metrics: The task's metrics over them, by name.
        learning_rate: The rate of the loop's last step.
        seconds: The duration of the loop.
        checkpoint_seconds: The time that a checkpoint after the loop has held the steps; 0 without.
        input_seconds: The part of `seconds` spent waiting for input.
        flops: A step's operations in matrix products and convolutions; see loop/flops.py.
        gradient_norm: The mean of the steps' norms of the gradient, before clipping.
        gradient_norms: The same of each trained variable's part of it, by the variable's path.
    """

    step: int
    last_step: int
    count: int
    loss: float
    metrics: Mapping[str, float]
    learning_rate: float
    seconds: float
    checkpoint_seconds: float
    input_seconds: float = 0.0
    flops: float = 0.0
    gradient_norm: float = 0.0
    gradient_norms: Mapping[str, float] = field(default_factory=dict)


class Callback:
    """Runs in the main thread; its exceptions end the training. All methods are optional."""

    def start(self, step: int) -> None:
        """Start before the first loop, with `step` steps done already."""

    def before_loop(self, step: int, report: LoopReport) -> None:
        """React to a finished loop before the next one starts, as what reads the model must."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        """React to a finished loop, after starting a due checkpoint; the next one may run."""

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """React to an evaluation with `figures` such as `test/loss`, after the last loop, too."""

    def close(self) -> None:
        """Clean up at the end, whatever ended the training."""


class History(Callback):
    """Keeps the course of a training: a row for each loop."""

    def __init__(self) -> None:
        """Start without rows."""
        self.rows: list[dict[str, float]] = []

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add a row."""
        rates = {"learning_rate": report.learning_rate}
        self.rows.append({"step": step, "loss": report.loss, **rates, **report.metrics})


@contextmanager
def started(callbacks: Sequence[Callback], step: int) -> Iterator[None]:
    """Start `callbacks` and, at the end, close those that were started."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(callback.close)
            callback.start(step)
        yield
