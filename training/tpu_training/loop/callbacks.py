"""Callbacks: the host's work between two loops of steps."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopReport:
    """A loop of `count` steps that ended at `step` of `last_step`.

    Attributes:
        loss: The mean over the loop's examples.
        accuracy: Likewise.
        learning_rate: The rate of the loop's last step.
        seconds: The duration of the loop.
        checkpoint_seconds: The time spent on a checkpoint after the loop.
        input_seconds: The part of `seconds` spent waiting for input.
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
    """Runs in the main thread; its exceptions end the training. All methods are optional."""

    def start(self, step: int) -> None:
        """Start before the first loop, with `step` steps done already."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        """React to a finished loop, after starting a due checkpoint."""

    def close(self) -> None:
        """Clean up at the end, whatever ended the training."""


@contextmanager
def started(callbacks: Sequence[Callback], step: int) -> Iterator[None]:
    """Start `callbacks` and, at the end, close those that were started."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(callback.close)
            callback.start(step)
        yield
