"""Asks Optuna what to try next, and which trials are poor.

Optuna's study is made anew from the record each time, so that the bucket is all that there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpustack.errors import UsageError
from tpustack.jobs.sweep.record import COMPLETE, FAILED, OPEN, PRUNED, Sweep, Trial
from tpustack.jobs.sweep.space import Parameter, Value, space_of

if TYPE_CHECKING:
    import optuna

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
    asked = _study(sweep, sweep.seed + len(sweep.trials)).ask(_distributions(space)).params
    return {one.name: one.rounded(asked[one.name]) for one in space}


def is_poor(sweep: Sweep, trial: Trial) -> bool:
    """Return whether the pruner would end a trial now."""
    import optuna

    if not trial.reports:
        return False
    study = _study(sweep, sweep.seed)
    index = [one.number for one in sweep.trials].index(trial.number)
    return optuna.trial.Trial(study, study.trials[index]._trial_id).should_prune()


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
