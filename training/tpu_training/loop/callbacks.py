"""Callbacks, the host's work between two loops of steps, and the request to shut down."""

from __future__ import annotations

import signal
import sys
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
        checkpoint_seconds: How long a save has held the steps; 0 in `before_loop`, before it.
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
    checkpoint_seconds: float = 0.0
    input_seconds: float = 0.0
    flops: float = 0.0
    gradient_norm: float = 0.0
    gradient_norms: Mapping[str, float] = field(default_factory=dict)


class Control:
    """What a callback may do to the training that it watches.

    In `before_loop` and `after_evaluation` no step runs: the time to read the model and to change
    the rate.

    Attributes:
        record_rate: Writes another factor to the next checkpoints than the one that counts.
        save: Saves a checkpoint after the loop that runs.
        epoch_steps: The steps from one validation to the next or, without any, of all examples.
        validates: Whether there are validations in between.
        factor: What the schedule's rate is multiplied by.
    """

    def __init__(
        self,
        model: Callable[[], Any],
        save: Callable[[], None],
        scale: Callable[[float], None],
        record_rate: Callable[[float], None],
        schedule: Callable[[Any], Any],
        step: Any,
        steps: int,
        validation_steps: int,
        data_steps: int,
    ) -> None:
        """Take `schedule`, the rate of each of `steps` as it is without a factor, and the next."""
        self._model, self.save, self._scale, self.record_rate = model, save, scale, record_rate
        self._schedule, self._step, self._steps = schedule, step, steps
        self.epoch_steps, self.validates = validation_steps or data_steps, bool(validation_steps)
        self.stopped, self.factor = False, 1.0

    def scale_rate(self, factor: float) -> None:
        """Multiply the schedule's rate by `factor` from now on; a resumed training keeps that."""
        self.factor = float(factor)
        self.record_rate(self.factor)
        self._scale(self.factor)

    @property
    def learning_rate(self) -> float:
        """The rate of the next step; another one that is set scales the schedule from there."""
        return self.factor * self._scheduled()

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        # The last rate of a schedule may be 0, which nothing scales.
        if scheduled := self._scheduled():
            self.scale_rate(rate / scheduled)

    def _scheduled(self) -> float:
        self._model()  # Brings the number of the step here, too.
        return float(self._schedule(self._step))

    @property
    def has_schedule(self) -> bool:
        """Whether the rate changes where no callback sets it."""
        some = (0, self._steps // 2, self._steps - 1)
        return len({float(self._schedule(step)) for step in some}) > 1

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
    model. At multiples of `interval` steps a loop ends.
    """

    control: Control
    interval = 0

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
    keras = sys.modules.get("keras")
    kinds = (Callback, *([keras.callbacks.Callback] if keras else []))
    if not isinstance(given, Sequence) or not all(isinstance(each, kinds) for each in given):
        raise InputError(
            f"{place}{given!r}, expected a list of tpu_training.loop.callbacks.Callback or of "
            "keras.callbacks.Callback"
        )
    foreign = [each for each in given if not isinstance(each, Callback)]
    for each in foreign:
        known = [kind.__name__ for kind in type(each).__mro__ if kind.__name__ in _INSTEAD]
        if getattr(each, "restore_best_weights", False):
            known = ["restore_best_weights"]
        if known:
            raise InputError(
                f"{place}[{type(each).__name__}]: omit {known[0]}; {_INSTEAD[known[0]]}"
            )
    own = [each for each in given if isinstance(each, Callback)]
    return [*own, KerasCallbacks(foreign)] if foreign else own


# What the trainer does instead of some of Keras' callbacks, and of an option of EarlyStopping.
_SAVES = "the trainer saves checkpoints, and with evaluation_interval=N it keeps the best as well"
_INSTEAD = {
    "ModelCheckpoint": _SAVES,
    "OrbaxCheckpoint": _SAVES,
    "BackupAndRestore": "the same call of fit continues where the last one ended",
    "TensorBoard": "the trainer writes MODEL_DIR/tensorboard already",
    "SwapEMAWeights": "pass ema_decay=0.999",
    "restore_best_weights": "take the best with tpu_training.load(model_dir, best=True)",
}


class KerasCallbacks(Callback):
    """Calls Keras' own callbacks as Keras does, with a loop of steps for a batch.

    An epoch ends with a validation or, without any, with the examples.
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._given = given
        self._loops: list[tuple[int, dict[str, float]]] = []
        self._ended, self._last = 0, sys.maxsize

    def start(self, step: int) -> None:
        """Show them the model; within an epoch a restart keeps the rate that they had set."""
        control, scheduler = self.control, sys.modules["keras"].callbacks.LearningRateScheduler
        if control.has_schedule and any(isinstance(each, scheduler) for each in self._given):
            raise InputError(
                "callbacks=[LearningRateScheduler]: sets the rate, which a schedule changes too; "
                "pass warmup_fraction=0 and schedule='constant', compile the model with a constant "
                "learning_rate, or omit LearningRateScheduler"
            )
        for each in self._given:
            each.set_params({"epochs": None, "steps": None, "verbose": 0})
            each.set_model(_ShownModel(control))
        self._call("on_train_begin", {})
        # A restart repeats a validation that is due, which ends the epoch.
        self.interval = every = control.epoch_steps
        factor, validates = control.factor, control.validates
        self._begin_epoch(max(0, step - validates) // every)
        if (step if validates else step % every) and control.factor != factor:
            control.scale_rate(factor)

    def before_loop(self, step: int, report: LoopReport) -> None:
        """End a batch, and an epoch that no validation ends."""
        self.control.record_rate(self.control.factor)
        logs = {"loss": report.loss, **report.metrics}
        self._loops.append((report.count, logs))
        self._last = report.last_step
        self._call("on_train_batch_end", step - 1, {**logs})
        if (step == self._last or step % self.interval == 0) and not self.control.validates:
            self._end_epoch(step, {})

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """End an epoch with a validation; the one after the last loop may repeat the last one."""
        split = "validation/"
        found = {f"val_{n.removeprefix(split)}": v for n, v in figures.items() if split in n}
        if found and self.control.validates and step != self._ended:
            self._end_epoch(step, found)

    def close(self) -> None:
        """End the training."""
        self._call("on_train_end", {})

    def _end_epoch(self, step: int, validated: dict[str, float]) -> None:
        steps = sum(count for count, _ in self._loops)
        names = self._loops[-1][1] if self._loops else ()
        mean = {n: sum(count * logs[n] for count, logs in self._loops) / steps for n in names}
        self._loops, self._ended = [], step
        epoch = (step - 1) // self.interval
        self._call("on_epoch_end", epoch, {**mean, **validated})
        if step < self._last and not self.control.stopped:
            self._begin_epoch(epoch + 1)

    def _begin_epoch(self, epoch: int) -> None:
        factor = self.control.factor
        self._call("on_epoch_begin", epoch, {})
        # A restart from a checkpoint of this step begins the epoch again.
        self.control.record_rate(factor)

    def _call(self, method: str, *arguments: Any) -> None:
        for each in self._given:
            getattr(each, method)(*arguments)


class _ShownModel:
    """The model as Keras' callbacks use it: they set the rate, stop, and read all else."""

    def __init__(self, control: Control) -> None:
        self.optimizer = control

    @property
    def stop_training(self) -> bool:
        return self.optimizer.stopped

    @stop_training.setter
    def stop_training(self, stops: bool) -> None:
        self.optimizer.stopped |= stops

    def __getattr__(self, name: str) -> Any:
        model = self.optimizer.model
        return getattr(model.keras() if hasattr(model, "keras") else model, name)


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
