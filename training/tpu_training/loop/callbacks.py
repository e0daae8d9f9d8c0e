"""Callbacks, the host's work between two loops of steps, and the request to shut down."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tpu_training.errors import InputError, Interrupted

_SIGTERM, _ELSEWHERE = "received SIGTERM", "another host has to end"


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
        flops: A step's operations in matrix products and convolutions; see loop/graph.py.
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


class Control:
    """What a callback may do to the training that it watches.

    In `before_loop` and `after_evaluation` no step runs: the time to read the model and to change
    the rate.

    Attributes:
        save: Saves a checkpoint after the loop that runs.
        scale_rate: Takes a factor, by which the schedule's rate is multiplied from now on; a
            resumed training keeps it.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        save: Callable[[], None],
        scale_rate: Callable[[float], None],
    ) -> None:
        self._model, self.save, self.scale_rate = model, save, scale_rate
        self.stopped = False

    @property
    def model(self) -> Any:
        """The model that is trained, with its current weights: ask for it each time."""
        return self._model()

    def stop(self) -> None:
        """End the training after the loop that runs, with a checkpoint and the last evaluations."""
        self.stopped = True


class Callback:
    """Runs in the main thread; its exceptions end the training. All methods are optional.

    `control` is set before `start`: it stops the training, saves, scales the rate, and has the
    model.
    """

    control: Control

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


def checked(given: object, place: str) -> Sequence[Callback]:
    """Return what the user has `given`. Raises InputError, which begins with `place`."""
    if not isinstance(given, Sequence) or not all(isinstance(each, Callback) for each in given):
        raise InputError(
            f"{place}{given!r}, expected a list of tpu_training.loop.callbacks.Callback"
        )
    return given


class History(Callback):
    """Keeps the course of a training: a row for each loop, with the validation at its end."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add a row."""
        rates = {"learning_rate": report.learning_rate}
        self.rows.append({"step": step, "loss": report.loss, **rates, **report.metrics})

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a validation to the row of the loop before it."""
        if self.rows and self.rows[-1]["step"] == step:
            held = {name: value for name, value in figures.items() if name.startswith("validation")}
            self.rows[-1] |= {name.replace("/", "_"): value for name, value in held.items()}


@contextmanager
def started(callbacks: Sequence[Callback], step: int) -> Iterator[None]:
    """Start `callbacks` and, at the end, close those that were started."""
    with ExitStack() as stack:
        for callback in callbacks:
            stack.callback(callback.close)
            callback.start(step)
        yield


class ShutdownRequest:
    """Remembers that the job has to end, or has to save because it may have to end.

    systemd, a VM's preemption and Google's autocheckpoint send SIGTERM first. As a context manager
    around the training this defers it: the training looks after each loop, and saves before it
    ends. Outside there is nothing to save, and SIGTERM ends the job at once.
    """

    def __init__(self) -> None:
        self.requested = False
        self.reason = _SIGTERM
        self._save = False
        self._training = False

    def install(self) -> None:
        """Handle SIGTERM from now on; main thread only."""
        signal.signal(signal.SIGTERM, self._handle)

    def request(self, reason: str) -> None:
        """Ask the training to save and to end; from any thread."""
        self.reason, self.requested = reason, True

    def join(self) -> None:
        """End, too, as another host has to, which trains with this one."""
        if not self.requested:
            self.request(_ELSEWHERE)

    def request_save(self) -> None:
        """Ask the training to save and continue; from any thread."""
        self._save = True

    def why(self) -> str:
        """Return the reason of the request to end; empty without one."""
        return self.reason if self.requested else ""

    def check(self) -> None:
        """Raise Interrupted if there is a request to end."""
        if self.requested:
            raise Interrupted(f"{self.reason}; start again to resume")

    def take_notice(self) -> bool:
        """Return whether to save now; a request to save is answered by one checkpoint."""
        save, self._save = self._save, False
        return save or self.requested

    def __enter__(self) -> ShutdownRequest:
        self._training = True
        return self

    def __exit__(self, *_: object) -> None:
        self._training = False

    def _handle(self, _signal: int, _frame: FrameType | None) -> None:
        self.reason, self.requested = _SIGTERM, True
        if not self._training:
            raise Interrupted(f"{_SIGTERM}; there was nothing to save; start again")
