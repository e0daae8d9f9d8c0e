"""Optimizers, their learning-rate schedules, and which variables they train.

They are plain tf.Modules, the same under every strategy and TensorFlow version, and replace Keras'
optimizers because Keras clips gradients before summing them over the replicas (so the norm is that
of one replica's part) and can't leave the sum to the caller, which gradient accumulation needs
(keras#20582). A model that was compiled with a Keras optimizer keeps it: see KerasOptimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models import model as models
from tpu_training.models.keras import KerasModule
from tpu_training.models.params import KERAS_AUTO, TRAINED, Params, build_params

# step, counted from 0 -> learning rate
Schedule = Callable[[tf.Tensor], tf.Tensor]

# What biases and the parameters of normalisations are called, here and in Keras. A bias of Keras'
# MultiHeadAttention has two axes, as has a scale of a LayerNormalization over two.
_OFFSETS_AND_SCALES = ("bias", "offset", "scale", "beta", "gamma")
_EPSILON = 1e-7
# LARS' trust coefficient.
_TRUST = 0.001
# Parameters that a Keras model's `compile` settles instead.
_UNUSED = (
    *("learning_rate", "warmup_fraction", "schedule"),
    *("momentum", "squares_momentum", "weight_decay", "clip_norm", "rate_factors"),
)


def create_optimizer(params: Params, chosen: Choice, schedule: Schedule) -> Optimizer:
    """Create the optimizer that `params` names; call in the strategy's scope."""
    common: dict[str, Any] = {"weight_decay": params.weight_decay, "clip_norm": params.clip_norm}
    common |= {"rate_factors": chosen.rate_factors, "paths": chosen.paths}
    if params.optimizer in (KERAS_AUTO, "adam"):
        betas = {"beta_1": params.momentum, "beta_2": params.squares_momentum}
        return Adam(chosen.trained, schedule, **common, **betas)
    plain = {"sgd": Sgd, "nesterov": Nesterov, "lars": Lars}[params.optimizer]
    return plain(chosen.trained, schedule, **common, momentum=params.momentum)


class Choice(NamedTuple):
    """The variables that are trained, each with its path and its factor of the rate.

    `frozen` has the ids of all others that must keep their values. Checkpoints don't hold those in
    `unsaved`, which never change.
    """

    trained: list[tf.Variable]
    rate_factors: list[float]
    frozen: frozenset[int]
    paths: list[str]
    unsaved: Sequence[tf.Variable] = ()


def choose_variables(params: Params, model: tf.Module) -> Choice:
    """Return what of `model` `params` lets train.

    Raises:
        InputError: A pattern matches nothing, a factor is no number, or nothing is left to train.
    """
    trainable = list(zip(models.variable_names(model), model.trainable_variables, strict=True))
    every = list(models.variable_paths(model))
    frozen = _frozen(params.freeze, [path for path, _ in every])
    trained = [(path, variable) for path, variable in trainable if path not in frozen]
    if not trained:
        raise InputError(f"--freeze={params.freeze}: freezes all variables; leave some to train")
    paths = [path for path, _ in trained]
    factors = _rate_factors(params.rate_factors, paths)
    constant = frozenset(id(variable) for path, variable in every if path in frozen)
    fixed = constant | (model.fixed if isinstance(model, KerasModule) else frozenset())
    saves_all = params.checkpoint_weights != TRAINED
    return Choice(
        [variable for _, variable in trained],
        [factors[path] for path in paths],
        constant,
        paths,
        [] if saves_all else [variable for _, variable in every if id(variable) in fixed],
    )


def _frozen(text: str, paths: Sequence[str]) -> set[str]:
    """Return the paths that the patterns freeze, taken in turn; one with ! thaws them again."""
    frozen: set[str] = set()
    for pattern in models.split_patterns(text):
        meant = pattern.removeprefix("!")
        models.check_pattern(f"--freeze={text}", meant, paths)
        found = {path for path in paths if models.matches(path, meant)}
        frozen = frozen - found if pattern.startswith("!") else frozen | found
    return frozen


def _rate_factors(text: str, paths: Sequence[str]) -> dict[str, float]:
    factors = dict.fromkeys(paths, 1.0)
    for part in models.split_patterns(text):
        pattern, _, written = part.rpartition("=")
        try:
            factor = float(written)
        except ValueError:
            factor = -1.0
        if not (pattern and 0.0 <= factor <= 1e6):
            raise InputError(
                f"--rate_factors={text}: {part!r} is not PATTERN=FACTOR, such as head=10, with a "
                "factor from 0 to 1e6"
            )
        models.check_pattern(f"--rate_factors={text}", pattern, paths)
        factors.update((path, factor) for path in paths if models.matches(path, pattern))
    return factors


def create_schedule(params: Params, steps: int) -> Schedule:
    """Return the schedule that `params` describes, for a run of `steps` steps.

    The warm-up reaches the peak with its last step. After it, `constant` keeps the peak; `cosine`
    and `linear` fall to 0.
    """
    warmup = max(1.0, params.warmup_fraction * steps)
    rest = max(1.0, steps - warmup)
    share = {
        "constant": tf.ones_like,
        "cosine": lambda done: 0.5 * (1.0 + tf.cos(math.pi * done)),
        "linear": lambda done: 1.0 - done,
    }[params.schedule]

    def rate(step: tf.Tensor) -> tf.Tensor:
        position = tf.cast(step, tf.float32) + 1.0
        done = tf.clip_by_value((position - warmup) / rest, 0.0, 1.0)
        return params.learning_rate * tf.where(position < warmup, position / warmup, share(done))

    return rate


class Change(NamedTuple):
    """What changes a variable: its slots, its gradient, the rate of the step and its decay.

    `correction` is what `Optimizer.correction` returns for the step. `is_weight` says that it is
    neither a bias nor of a normalisation: only weights decay.
    """

    slots: Sequence[tf.Variable]
    gradient: tf.Tensor
    rate: tf.Tensor
    correction: tf.Tensor | float
    decay: float
    is_weight: bool


class Optimizer(tf.Module):  # type: ignore[misc]
    """An optimizer; subclasses implement the update of one variable."""

    slot_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        schedule: Schedule,
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
        rate_factors: Sequence[float] = (),
        paths: Sequence[str] = (),
    ) -> None:
        """Create slots for each of `variables`; call in the strategy's scope.

        `clip_norm` limits the global norm of the gradients; 0 does not clip. Each variable has a
        factor of the rate in `rate_factors` and its place in the model in `paths`.
        """
        super().__init__()
        self._variables = list(variables)
        self._are_weights = [is_weight(*pair) for pair in zip(paths, variables, strict=True)]
        self._weight_decay = weight_decay
        self._clip_norm = clip_norm
        self._rate_factors = tuple(rate_factors)
        self.rate = schedule
        self.slots = [
            [
                tf.Variable(tf.zeros(variable.shape), trainable=False, name=name)
                for name in self.slot_names
            ]
            for variable in variables
        ]

    def apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Update the variables; call in replica context.

        `gradients` must be summed over all replicas already, since clipping needs the norm of the
        sum. `step` counts from 0.
        """
        if self._clip_norm:
            gradients, _ = tf.clip_by_global_norm(list(gradients), self._clip_norm)
        context = tf.distribute.get_replica_context()
        rate, correction = self.rate(step), self.correction(step)
        context.merge_call(self._update_all, args=(list(gradients), rate, correction))

    def scaled(self) -> tf.Variable:
        """Return a new factor of all later rates, 1 at first; call in the strategy's scope."""
        kind = tf.VariableAggregation.ONLY_FIRST_REPLICA
        factor, rate = tf.Variable(1.0, trainable=False, aggregation=kind), self.rate
        self.rate = lambda step: rate(step) * factor
        return factor

    def correction(self, step: tf.Tensor) -> tf.Tensor | float:
        """Return what the step's number changes in the rate of all variables, as a factor.

        It is traced once for each replica, not for each copy of each variable.
        """
        return 1.0

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy of one variable."""
        raise NotImplementedError

    def _update_all(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        correction: tf.Tensor | float,
    ) -> None:
        # TensorFlow 2.12 can't compile zip with strict.
        for index, gradient in enumerate(gradients):
            is_weight = self._are_weights[index]
            decay = self._weight_decay if is_weight else 0.0
            change = Change(self.slots[index], gradient, rate, correction, decay, is_weight)
            arguments = (change, self._rate_factors[index])
            strategy.extended.update(
                self._variables[index], self._update_copy, args=arguments, group=True
            )

    def _update_copy(self, variable: tf.Variable, change: Change, factor: float) -> None:
        rate = change.rate if factor == 1.0 else change.rate * factor
        self.update(variable, change._replace(rate=rate))


def is_weight(path: str, variable: tf.Variable) -> bool:
    """Return whether the variable at `path` is neither a bias nor of a normalisation."""
    return len(variable.shape) > 1 and path.rpartition("/")[2] not in _OFFSETS_AND_SCALES


class Sgd(Optimizer):
    """SGD with momentum and with weight decay in the gradient, as usual for ResNets."""

    slot_names = ("velocity",)

    def __init__(self, *arguments: Any, momentum: float, **others: Any) -> None:
        """Keep the part `momentum` of the velocity each step."""
        super().__init__(*arguments, **others)
        self._momentum = momentum

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Set velocity = momentum * velocity + gradient; variable -= rate * its direction."""
        (velocity,), gradient, rate, _, decay, _ = change
        if decay:
            gradient += decay * variable
        moved = velocity.assign(self._momentum * velocity + gradient)
        variable.assign_sub(rate * self._direction(moved, gradient))

    def _direction(self, velocity: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return velocity


class Nesterov(Sgd):
    """SGD with Nesterov's momentum, as Sutskever et al. write it (PMLR 28(3):1139, 2013)."""

    def _direction(self, velocity: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return self._momentum * velocity + gradient


class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980; the decay: Loshchilov and Hutter, arXiv:1711.05101)."""

    slot_names = ("first", "second")

    def __init__(self, *arguments: Any, beta_1: float, beta_2: float, **others: Any) -> None:
        """Set the decay rates of the gradients' mean (`beta_1`) and of their squares (`beta_2`)."""
        super().__init__(*arguments, **others)
        self._beta_1, self._beta_2 = beta_1, beta_2

    def correction(self, step: tf.Tensor) -> tf.Tensor:
        """Return both bias corrections, which are in the rate (end of the paper's section 2)."""
        count = tf.cast(step, tf.float32) + 1.0
        return tf.sqrt(1.0 - self._beta_2**count) / (1.0 - self._beta_1**count)

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy."""
        (first, second), gradient, rate, correction, decay, _ = change
        mean = first.assign_add((1.0 - self._beta_1) * (gradient - first))
        square = second.assign_add((1.0 - self._beta_2) * (tf.square(gradient) - second))
        difference = rate * correction * mean / (tf.sqrt(square) + _EPSILON)
        if decay:
            difference += rate * decay * variable
        variable.assign_sub(difference)


class Lars(Sgd):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888).

    The velocity adds up steps, each with the rate and the ratio of its time, as in the paper's
    algorithm 1. Biases and normalisations, which have no weight decay, take the rate as it is.
    """

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Scale the rate by the ratio of the norms of the weights and of their gradient."""
        (velocity,), gradient, rate, _, decay, is_weight = change
        if is_weight:
            weights, norm = tf.norm(variable), tf.norm(gradient)
            ratio = _TRUST * weights / (norm + decay * weights)
            rate *= tf.where((weights > 0.0) & (norm > 0.0), ratio, 1.0)
            gradient += decay * variable
        moved = velocity.assign(self._momentum * velocity + rate * gradient)
        variable.assign_sub(moved)


class PartedOptimizer(Optimizer):
    """An optimizer for each part of a model, such as the two of a GAN."""

    def __init__(
        self,
        params: Params,
        chosen: Choice,
        steps: int,
        settings: Mapping[str, Mapping[str, Any]],
        parts: Mapping[str, Sequence[int]],
    ) -> None:
        """Create those of `parts`, each with its `settings`; call in the strategy's scope.

        The rate that is shown is the first one's.
        """
        self._parts = [tuple(places) for places in parts.values()]
        self.each = []
        for name, places in parts.items():
            own = _own_params(params, name, settings[name])
            choice = Choice(
                [chosen.trained[at] for at in places],
                [chosen.rate_factors[at] for at in places],
                chosen.frozen,
                [chosen.paths[at] for at in places],
            )
            self.each.append(create_optimizer(own, choice, create_schedule(own, steps)))
        super().__init__((), self.each[0].rate)

    def apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Update the variables of each part; call in replica context."""
        for index, optimizer in enumerate(self.each):
            optimizer.apply([gradients[at] for at in self._parts[index]], step)

    def scaled(self) -> tf.Variable:
        """Return a new factor of the rates of all parts."""
        factor = super().scaled()
        for optimizer in self.each:
            optimizer.rate = _times(optimizer.rate, factor)
        return factor


def _times(rate: Schedule, factor: tf.Variable) -> Schedule:
    return lambda step: rate(step) * factor


def parts_of(
    settings: Mapping[str, Mapping[str, Any]], paths: Sequence[str]
) -> dict[str, list[int]]:
    """Return the places of the variables of each part that `settings` names; of all under "".

    Raises:
        InputError: A part has no variable that is trained, or a variable is in no part.
    """
    if not settings:
        return {"": list(range(len(paths)))}
    parts: dict[str, list[int]] = {name: [] for name in settings}
    for at, path in enumerate(paths):
        name = next((name for name in settings if models.matches(path, name)), None)
        if name is None:
            raise InputError(
                f"optimizers={', '.join(settings)}: {path} is in none of these parts of the "
                "model; give it one, or freeze it"
            )
        parts[name].append(at)
    for name in settings:
        models.check_pattern("optimizers", name, paths)
    return parts


def _own_params(params: Params, part: str, settings: Mapping[str, Any]) -> Params:
    """Return `params` with the `settings` of a part's optimizer, and what that one changes."""
    known = ("optimizer", *_UNUSED[:-1])
    if unknown := sorted(set(settings) - set(known)):
        raise InputError(
            f"optimizers['{part}']: {', '.join(unknown)} is not an optimizer's; expected "
            f"{', '.join(known)}"
        )
    given = build_params({}, settings.items(), (), type(params))
    changed = {*settings, *params.by_optimizer.get(settings.get("optimizer", ""), {})}
    return replace(params, **{name: getattr(given, name) for name in changed})


class KerasOptimizer(Optimizer):
    """The optimizer that a Keras model was compiled with, driven by the loop.

    Keras' own `apply` does the update, but for two things. The gradients are those of the whole
    batch already, so that they are not summed over the replicas again, and clipping takes the norm
    of the sum. And the rate of each step comes from the loop, which may be the range test's.
    """

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
    optimizer = _recreated(given, model.where)
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


def _recreated(given: Any, where: str) -> Any:
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
        problems.append("use_ema: the averages would not be used; remove it, and pass --ema_decay")
    return problems


def _unused(params: Params, given: Any) -> list[str]:
    """Return a problem for each parameter of another optimizer that differs from its default."""
    defaults = Params.__dataclass_fields__
    changed = [name for name in _UNUSED if getattr(params, name) != defaults[name].default]
    flags = ", ".join(f"--{name}={getattr(params, name)}" for name in changed)
    return [
        f"{flags} have no effect, because compile() set the optimizer {type(given).__name__}; set "
        "them there, or choose the trainer's with --optimizer=adam, sgd or lars"
    ] * bool(changed)
