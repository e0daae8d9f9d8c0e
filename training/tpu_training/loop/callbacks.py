"""What the host does between two loops of steps: a list of callbacks."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopReport:
    """A loop of `count` steps that ended at `step` of `last_step`.

    `loss` and `accuracy` are means over its examples, `learning_rate` is that of its last step,
    `seconds` is what the loop took, `input_seconds` what it waited for its input in that time,
    `checkpoint_seconds` what was waited for a checkpoint after it.
    """

    step: int
    last_step: int
    count: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float
    checkpoint_seconds: float
    input_seconds: float = 0.0


class Callback:
    """Called in the main thread; what it raises ends the training. Each method may be left out."""

    def start(self, step: int) -> None:
        """Called once before the first loop; `step` steps are done already."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Called after each loop, when a checkpoint that was due has been handed over."""

    def close(self) -> None:
        """Called once at the end, whatever ended it."""


@contextmanager
def started(callbacks: Sequence[Callback], step: int) -> Iterator[None]:
    """Start `callbacks`, and close those that were started."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(callback.close)
            callback.start(step)
        yield
