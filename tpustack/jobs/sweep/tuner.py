"""Asks Optuna what to try next, and which trials are poor.

Optuna's study is made anew from the record each time, so that the bucket is all that there is.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from tpustack.errors import UsageError
from tpustack.jobs.sweep.record import COMPLETE, FAILED, OPEN, PRUNED, Sweep, Trial
from tpustack.jobs.sweep.space import Parameter, Value, space_of

if TYPE_CHECKING:
    import optuna

_SPREAD = 10
"""How many trials are spread evenly before results decide: as many as TPESampler draws first."""
PRUNERS = ("median", "hyperband", "none")


def require_optuna() -> None:
    """Raise UsageError unless Optuna is installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError(
            "`tpustack job sweep` needs Optuna, which is not installed: `pip install optuna`, or "
            "this package with its extra `sweep`"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def next_params(sweep: Sweep) -> dict[str, Value]:
    """Return the parameters of the next trial."""
    space = space_of(sweep.params)
    # What is asked follows from the record alone, so that it may be asked again.
    number = len(sweep.trials)
    if number < _SPREAD:
        places = _places(sweep.seed, number, len(space))
        return {one.name: one.at(place) for one, place in zip(space, places, strict=True)}
    asked = _study(sweep, sweep.seed + number).ask(_distributions(space)).params
    return {one.name: one.rounded(asked[one.name]) for one in space}


def is_poor(sweep: Sweep, trial: Trial) -> bool:
    """Return whether the pruner would end a trial now."""
    import optuna

    if not trial.reports:
        return False
    study = _study(sweep, sweep.seed)
    index = [one.number for one in sweep.trials].index(trial.number)
    return optuna.trial.Trial(study, study.trials[index]._trial_id).should_prune()


def _places(seed: int, number: int, parameters: int) -> list[float]:
    """Return where in each parameter's range, from 0 to 1, a trial of the start lies.

    Trials are points of an additive recurrence: any few after one another are spread evenly over
    all parameters together (Roberts 2018, "The Unreasonable Effectiveness of Quasirandom
    Sequences"). A sampler with a seed of its own for each trial would draw first numbers, which
    lie close together. The seed shifts all points.
    """
    ratio = 2.0
    for _ in range(60):  # Converges to the root of x^(n+1) = x + 1.
        ratio = (1 + ratio) ** (1 / (parameters + 1))
    shifts = random.Random(seed)
    return [(shifts.random() + number * ratio ** -(index + 1)) % 1 for index in range(parameters)]


def _study(sweep: Sweep, seed: int) -> optuna.Study:
    import optuna

    study = optuna.create_study(
        study_name=sweep.name,
        direction=sweep.goal,
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        pruner=_pruner(sweep.pruner),
    )
    distributions = _distributions(space_of(sweep.params))
    states = optuna.trial.TrialState
    names = {OPEN: states.RUNNING, COMPLETE: states.COMPLETE, PRUNED: states.PRUNED}
    for one in sweep.trials:
        study.add_trial(
            optuna.trial.create_trial(
                state=names.get(one.state, states.FAIL),
                params=one.params,
                distributions=distributions,
                intermediate_values=dict(one.reports),
                value=one.value if one.state not in (OPEN, FAILED) else None,
            )
        )
    return study


def _pruner(name: str) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if name == "hyperband":
        return pruners.HyperbandPruner()
    return pruners.MedianPruner() if name == "median" else pruners.NopPruner()


def _distributions(space: tuple[Parameter, ...]) -> dict[str, Any]:
    from optuna import distributions

    return {one.name: _distribution(one, distributions) for one in space}


def _distribution(one: Parameter, kinds: Any) -> Any:
    if one.choices:
        return kinds.CategoricalDistribution(one.choices)
    kind = kinds.IntDistribution if isinstance(one.low, int) else kinds.FloatDistribution
    return kind(one.low, one.high, log=one.is_log)
