"""The optimizer that a Keras model was compiled with, driven by the loop.

Keras' own `apply` does the update, but for two things. The gradients are those of the whole batch
already, so that they are not summed over the replicas again, and clipping takes the norm of the sum
(Keras clips each replica's part). And the rate of each step comes from the loop, which may be the
range test's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.loop.optimizers.base import Optimizer
from tpu_training.loop.optimizers.schedules import Schedule
from tpu_training.models.keras import KerasModule
from tpu_training.models.params import KERAS_AUTO, Params

# What `compile` settles instead.
_UNUSED = (
    *("learning_rate", "warmup_fraction", "schedule", "decay_factor", "decay_interval"),
    *("momentum", "squares_momentum", "weight_decay", "clip_norm", "rate_factors", "layer_decay"),
)


class KerasOptimizer(Optimizer):
    """Updates the variables of a Keras model as its own optimizer does."""

    def __init__(
        self, schedule: Schedule, optimizer: Any, apply: Callable[[Sequence[tf.Tensor]], None]
    ) -> None:
        """Drive `optimizer`, which is built, by `apply`, at the rates of `schedule`."""
        super().__init__((), schedule)
        self.state = [slot.value for slot in optimizer.variables]
        self._learning_rate = optimizer.learning_rate.value
        self._apply = apply

    def apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Update the variables; call in replica context."""
        context = tf.distribute.get_replica_context()
        context.merge_call(self._set_rate, args=(self.rate(step),))
        self._apply(gradients)

    def _set_rate(self, strategy: tf.distribute.Strategy, rate: tf.Tensor) -> None:
        # The variable's own `assign` would send the first replica's rate to the others.
        strategy.extended.update(self._learning_rate, _assign, args=(rate,), group=True)


def _assign(variable: tf.Variable, value: tf.Tensor) -> None:
    variable.assign(value)


def compiled_optimizer(
    params: Params, model: object, trained: Sequence[tf.Variable]
) -> Optimizer | None:
    """Return the optimizer that `model` was compiled with; None if another one is asked for.

    Call in the strategy's scope. It updates `trained`, variables of the model.

    Raises:
        InputError: It can't be driven, or parameters are given that it does not follow.
    """
    given = getattr(model.keras(), "optimizer", None) if isinstance(model, KerasModule) else None
    if given is None or params.optimizer != KERAS_AUTO:
        return None
    assert isinstance(model, KerasModule)
    if problems := [*_problems(given), *_unused(params, given)]:
        raise InputError("; ".join(f"{model.where}: {problem}" for problem in problems))
    optimizer = _copy(given, model.where)
    by_id = {id(value): variable for variable, value in model.trained_pairs()}
    variables = [by_id[id(variable)] for variable in trained]
    optimizer.build(variables)
    # It would sum over the replicas, and send the first one's number of steps to the others.
    optimizer._all_reduce_sum_gradients = lambda pairs: pairs
    optimizer.iterations.assign_add = optimizer.iterations.value.assign_add
    optimizer.built = True

    def apply(gradients: Sequence[tf.Tensor]) -> None:
        optimizer.apply(gradients, variables)

    return KerasOptimizer(_schedule(given), optimizer, apply)


def _copy(given: Any, where: str) -> Any:
    """Return a new one with the same settings: its own variables may be outside of the scope."""
    try:
        return type(given).from_config({**given.get_config(), "learning_rate": 0.0})
    except Exception as error:  # Whatever a user's class may raise.
        raise InputError(
            f"{where}: {type(given).__name__} can't be recreated from its get_config "
            f"({type(error).__name__}: {error}), as training under a strategy needs"
        ) from error


def _schedule(given: Any) -> Schedule:
    """Return Keras' schedule, or its constant rate."""
    rate = given._learning_rate
    if callable(rate) and hasattr(rate, "get_config"):
        return lambda step: tf.cast(rate(step), tf.float32)
    constant = float(rate.numpy() if hasattr(rate, "numpy") else rate)
    return lambda step: tf.constant(constant)


def _problems(given: Any) -> list[str]:
    problems = []
    if getattr(given, "inner_optimizer", None) is not None:
        problems.append("a LossScaleOptimizer is for float16; bfloat16 needs none")
    if getattr(given, "gradient_accumulation_steps", None):
        problems.append("gradient_accumulation_steps: use --gradient_accumulation instead")
    if getattr(given, "use_ema", False):
        problems.append("use_ema: the averages would not be used; leave it out")
    return problems


def _unused(params: Params, given: Any) -> list[str]:
    """Return a problem for each parameter of another optimizer that differs from its default."""
    defaults = Params.__dataclass_fields__
    changed = [name for name in _UNUSED if getattr(params, name) != defaults[name].default]
    flags = ", ".join(f"--{name}={getattr(params, name)}" for name in changed)
    return [
        f"{flags} would not count: compile() gave the optimizer {type(given).__name__}; set it "
        "there, or name the trainer's with --optimizer=adam, sgd or lars"
    ] * bool(changed)
