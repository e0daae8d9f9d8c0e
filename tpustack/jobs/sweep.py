"""A sweep: the same job with other parameters, each trial a job of the queue.

`sweeps/NAME.json` in the first queue's bucket is the sweep's record. A trial is written there
before its job is submitted, so that a command that continues the sweep submits what is missing and
nothing twice. `step` of the driver reads what trials report, asks Optuna for poor ones and for new
parameters, and submits them.
"""

import math
import random
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tpu_agent.jobs.queue import SUCCEEDED, Job, Queue, Spec
from tpu_core import google, paths, records
from tpu_core.bucket import Bucket, Conflict
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import job as jobs

if TYPE_CHECKING:
    import optuna

Value = float | int | str
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_INTEGER = re.compile(r"[-+]?\d+")
_LOG = ":log"
_LIKE = "Write it like learning_rate=1e-4..1e-1:log, batch=16..256 or optimizer=adam,lamb"
# More digits say nothing of a parameter, and make commands hard to read.
_DIGITS = 6


@dataclass(frozen=True)
class Parameter:
    """A parameter: its range, or its choices.

    Attributes:
        low: the range's first value; an integer if both ends are written as integers.
        high: its last value, which a trial may have, too.
        is_log: whether the range is one of orders of magnitude.
        choices: words of which each trial has one; without any it is a range.
    """

    name: str
    low: float | int = 0
    high: float | int = 0
    is_log: bool = False
    choices: tuple[str, ...] = ()

    def at(self, place: float) -> Value:
        """Return the value at a place of the range, from 0 to 1 (exclusive)."""
        if self.choices:
            return self.choices[int(place * len(self.choices))]
        # Each integer has an equal share, also the last.
        end = self.high + 1 if isinstance(self.high, int) else self.high
        if self.is_log:
            value = self.low * (end / self.low) ** place
        else:
            value = self.low + (end - self.low) * place
        return min(int(value), self.high) if isinstance(self.low, int) else self.rounded(value)

    def has(self, value: Value) -> bool:
        """Return whether a value is one of it."""
        if self.choices or isinstance(value, str):
            return value in self.choices
        return self.low <= value <= self.high

    def rounded(self, value: Value) -> Value:
        """Return a value as commands have it, still within the range.

        Rounding may leave the range at an end that has more digits itself.
        """
        if not isinstance(value, float):
            return value
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


def space_of(texts: Iterable[str]) -> tuple[Parameter, ...]:
    """Return what `--param` names. Raises UsageError with everything that is wrong."""
    found: dict[str, Parameter] = {}
    problems: list[str] = []
    for text in texts:
        try:
            parameter = _parse(text)
            if parameter.name in found:
                raise ValueError("it is given twice")
            found[parameter.name] = parameter
        except ValueError as error:
            problems.append(f"--param: {text!r}: {error}")
    if problems:
        raise UsageError("\n".join(problems))
    return tuple(found.values())


def command_with(command: str, values: Mapping[str, Value]) -> str:
    """Return a command with {NAME} replaced, and `--NAME=VALUE` after it for the others."""
    behind = []
    for name, value in values.items():
        # A choice is any text, and bash reads the command.
        word = shlex.quote(str(value))
        # ${NAME} is a variable of the shell.
        parts = re.split(rf"(?<!\$)\{{{name}\}}", command)
        command = word.join(parts)
        if len(parts) == 1:
            behind.append(f"--{name}={word}")
    return " ".join([command, *behind])


def _parse(text: str) -> Parameter:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise ValueError(f"it names no parameter. {_LIKE}")
    is_log = rest.endswith(_LOG)
    low, dots, high = rest.removesuffix(_LOG).partition("..")
    if dots:
        return _range(name, low, high, is_log=is_log)
    choices = tuple(rest.split(","))
    if is_log or len(choices) < 2 or not all(choices) or len(set(choices)) < len(choices):
        raise ValueError(f"it is neither a range nor a list of different words. {_LIKE}")
    return Parameter(name, choices=choices)


def _range(name: str, low: str, high: str, *, is_log: bool) -> Parameter:
    number = int if _INTEGER.fullmatch(low) and _INTEGER.fullmatch(high) else float
    try:
        ends = (number(low), number(high))
    except ValueError:
        raise ValueError(f"its ends are no numbers. {_LIKE}") from None
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1]:
        raise ValueError("its first end must be less than its second")
    if is_log and ends[0] <= 0:
        raise ValueError("a range with :log begins above 0")
    return Parameter(name, *ends, is_log=is_log)


# --- The sweep and its record.

OPEN, COMPLETE, PRUNED, FAILED = "open", "complete", "pruned", "failed"
Goal = Literal["minimize", "maximize"]
MINIMIZE: Goal = "minimize"
MAXIMIZE: Goal = "maximize"


def require_name(name: str) -> str:
    """Return a sweep's name. Raises UsageError for what can't be one."""
    # Its jobs are called NAME-000, and must be names of jobs, too.
    if not paths.NAME.fullmatch(job_of(name, 0)):
        raise UsageError(
            f"{name!r} is not a name of a sweep (at most 59 lower-case letters, digits, hyphens, "
            "dots, underscores; a letter or digit first)"
        )
    return name


def job_of(sweep: str, number: int) -> str:
    """Return the name of a trial's job."""
    return f"{sweep}-{number:03}"


@dataclass(frozen=True)
class Trial:
    """One job of a sweep.

    Attributes:
        number: from 0 on.
        bucket: whose queue has it.
        job: its name there.
        params: what it was started with.
        reports: the metric by step, as far as it was read.
        value: the metric at its end.
        why: for people, why it failed.
    """

    number: int
    bucket: str
    job: str
    params: dict[str, Value]
    state: str = OPEN
    reports: tuple[tuple[int, float], ...] = ()
    value: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        params: as `--param` has them.
        spec: of each job, before its parameters go into the command.
        wanted: how many trials.
        parallel: how many of them are in each queue at a time.
        buckets: whose queues run trials; the first has this record.
    """

    name: str
    params: tuple[str, ...]
    spec: Spec
    metric: str
    goal: Goal
    wanted: int
    parallel: int
    seed: int
    buckets: tuple[str, ...]
    trials: tuple[Trial, ...] = ()

    @property
    def best(self) -> Trial | None:
        """The best of the trials that are complete."""
        complete = [one for one in self.trials if one.state == COMPLETE and one.value is not None]
        return min(complete, key=self.rank, default=None)

    def rank(self, trial: Trial) -> tuple[bool, bool, float, int]:
        """Return what sorts trials: the best first, then pruned ones, then those without a value.

        What a pruned trial had reached was no end, however good it was.
        """
        value = trial.value or 0.0
        value = -value if self.goal == MAXIMIZE else value
        return trial.value is None, trial.state != COMPLETE, value, trial.number

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return len(self.trials) >= self.wanted and not self.open_ones()

    def open_ones(self, bucket: str | None = None) -> list[Trial]:
        """Return the trials that have not ended, all or those of one bucket."""
        return [one for one in self.trials if one.state == OPEN and bucket in (None, one.bucket)]

    def having(self, trial: Trial) -> "Sweep":
        """Return the sweep with a trial that is new or has changed."""
        others = [one for one in self.trials if one.number != trial.number]
        trials = sorted([*others, trial], key=lambda one: one.number)
        return replace(self, trials=tuple(trials))


class Record:
    """A sweep's record in a bucket; it notices if another command writes it.

    Each write is made on the condition of the generation that was read or written before: two
    commands that continue one sweep would choose the same trials twice.
    """

    def __init__(self, store: Bucket, name: str) -> None:
        self._store, self._path = store, f"sweeps/{require_name(name)}.json"
        self._name, self._generation = name, 0

    def read(self) -> Sweep:
        """Return the sweep. Raises UsageError if there is none, or GoogleError."""
        found = self._store.read(self._path)
        if found is None:
            raise UsageError(f"there is no sweep {self._name} in gs://{self._store.bucket}")
        self._generation = found[1]
        return _parse_record(found[0], self._name, self._path)

    def write(self, sweep: Sweep) -> None:
        """Write it. Raises TpustackError if it was changed since; UsageError if it is not new."""
        data = records.dump(sweep)
        try:
            self._generation = self._store.write(self._path, data, generation=self._generation)
        except Conflict:
            if not self._generation:
                raise UsageError(
                    f"--name: there is a sweep {self._name} already. `tpustack job trials --resume "
                    f"{self._name}` continues it; another --name begins a new one"
                ) from None
            raise TpustackError(
                f"another command continues the sweep {self._name}: this one ends"
            ) from None


def _parse_record(data: bytes, name: str, path: str) -> Sweep:
    """Return the sweep of that name, checked: others may write its record.

    A value outside of its range would put text of their choice into a command, and a job of another
    name would have this sweep stop it.
    """
    try:
        sweep = records.load(Sweep, data)
        space = space_of(sweep.params)
        wrong = {"name": sweep.name != name, "buckets": not sweep.buckets}
        for number, one in enumerate(sweep.trials):
            wrong[f"trials[{number}]"] = not (
                (one.number, one.job) == (number, job_of(name, number))
                and one.bucket in sweep.buckets
                and one.state in (OPEN, COMPLETE, PRUNED, FAILED)
                and one.params.keys() == {each.name for each in space}
                and all(each.has(one.params[each.name]) for each in space)
            )
        if found := [field for field, is_wrong in wrong.items() if is_wrong]:
            raise records.Unreadable(f"no sweep has such a {', '.join(found)}")
    except (records.Unreadable, UsageError) as error:
        raise TpustackError(f"{path} is not a record of a sweep: {error}") from None
    return sweep


# --- What trials report.

# Bytes of a line: a longer one is data, not a report.
_LONGEST = 64 << 10
_STEP = re.compile(rb"\bstep=(\d{1,15})\b")


class Reports:
    """The metric of one job by step, from what the job wrote into the bucket.

    A running job reports in its log, by lines with `step=` and `METRIC=` in them. Once it is over,
    `metrics.json` in MODEL_DIR counts first, and lines without `step=` last. The trainer writes the
    first two.
    """

    def __init__(self, queue: Queue, job: str, metric: str) -> None:
        self._queue, self._job, self._metric = queue, job, metric
        self._word = re.compile(rb"\b" + re.escape(metric.encode()) + rb"=([-+.\w]+)")
        self._behind, self._rest = "", b""
        self._values: dict[int, float] = {}
        # For jobs that write no steps.
        self._last: float | None = None

    def read(self) -> tuple[tuple[int, float], ...]:
        """Return step and metric, as far as the bucket has them. Raises GoogleError."""
        for item in self._queue.store.items(paths.logs(self._job), behind=self._behind):
            found = self._queue.store.read(item.path)
            self._behind = item.path
            *lines, rest = (self._rest + (found[0] if found else b"")).split(b"\n")
            self._rest = rest[-_LONGEST:]
            for line in lines:
                self._add(line)
        return tuple(sorted(self._values.items()))

    def final(self) -> float | None:
        """Return the metric at the end of the job; None if it never wrote one."""
        kept = self._queue.store.read(f"{paths.folder(self._job)}model/metrics.json")
        value = _number(google.parse(kept[0]).get(self._metric)) if kept else None
        if value is not None:
            return value
        self.read()
        # The last line of a job that was killed may have no end.
        self._add(self._rest)
        return self._values[max(self._values)] if self._values else self._last

    def _add(self, line: bytes) -> None:
        if len(line) < _LONGEST and (found := self._word.search(line)):
            step, value = _STEP.search(line), _number(found[1].decode(errors="replace"))
            if value is not None and step:
                self._values[int(step[1])] = value
            elif value is not None:
                self._last = value


def _number(value: object) -> float | None:
    """Return a number, also one that is written as text; None for anything else."""
    try:
        return float(str(value))
    except ValueError:
        return None


# --- What Optuna decides.

# How many trials are spread evenly before results decide: as many as TPESampler draws first.
_SPREAD = 10


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
    # Parameters follow from the record alone: the study is recreated from it each time.
    number = len(sweep.trials)
    if number < _SPREAD:
        places = _places(sweep.seed, number, len(space))
        return {one.name: one.at(place) for one, place in zip(space, places, strict=True)}
    asked = _study(sweep, sweep.seed + number).ask(_distributions(sweep)).params
    return {one.name: one.rounded(asked[one.name]) for one in space}


def is_poor(sweep: Sweep, trial: Trial) -> bool:
    """Return whether a trial is worse than the median of others at its step, once five ended."""
    import optuna

    if not trial.reports:
        return False
    study = _study(sweep, sweep.seed)
    # Optuna decides only about trials that its own ask() began, and this study is a copy: so the
    # trial is looked up by its place among those that were added.
    return optuna.trial.Trial(study, study.trials[trial.number]._trial_id).should_prune()


def _places(seed: int, number: int, parameters: int) -> list[float]:
    """Return where in each parameter's range, from 0 to 1, an early trial lies.

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


def _study(sweep: Sweep, seed: int) -> "optuna.Study":
    import optuna

    study = optuna.create_study(
        study_name=sweep.name,
        direction=sweep.goal,
        # Trials that run count as bad ones, or parallel ones would all be drawn next to each other.
        sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        pruner=optuna.pruners.MedianPruner(),
    )
    distributions = _distributions(sweep)
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


def _distributions(sweep: Sweep) -> dict[str, Any]:
    from optuna import distributions as kinds

    found: dict[str, Any] = {}
    for one in space_of(sweep.params):
        if one.choices:
            found[one.name] = kinds.CategoricalDistribution(one.choices)
            continue
        kind: Any = kinds.IntDistribution if isinstance(one.low, int) else kinds.FloatDistribution
        found[one.name] = kind(one.low, one.high, log=one.is_log)
    return found


# --- The driver.

# Seconds between two steps. A trial takes minutes, and a list of the bucket costs money.
_PAUSE = 2.0
# Reports of a trial that are kept in the record.
_MOST_REPORTS = 200


class Driver:
    """Drives one sweep.

    Args:
        sweep: as its record has it.
        record: where it is written.
        queues: those of its buckets, by their names.
        say: gets a line about each thing that happens.
    """

    def __init__(
        self, sweep: Sweep, record: Record, queues: Mapping[str, Queue], say: Callable[[str], None]
    ) -> None:
        self.sweep = sweep
        self._record, self._queues, self._say = record, queues, say
        # By trial: how far its log was read, and whether this command knows that its job exists.
        self._reports: dict[int, Reports] = {}
        self._begun: set[int] = set()

    def run(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Run until every trial has ended. Raises GoogleError or TpustackError."""
        for trial in self.sweep.trials:
            queue = self._queues[trial.bucket]
            # The command that pruned it may have ended before it stopped the job.
            if trial.state == PRUNED and (job := queue.read(trial.job)) and not job.is_over:
                jobs.stop_job(queue, trial.job)
        while True:
            self.step()
            if self.sweep.is_over:
                return
            sleep(_PAUSE)

    def step(self) -> None:
        """Read the trials, prune poor ones, submit new ones."""
        before = self.sweep
        poor = [trial for trial in before.open_ones() if self._look(trial)]
        for bucket in before.buckets:
            self._fill(bucket)
        if self.sweep != before:
            self._record.write(self.sweep)
        # The record is written before anything else is done.
        for trial in poor:
            jobs.stop_job(self._queues[trial.bucket], trial.job)
        for trial in self.sweep.open_ones():
            self._submit(trial)

    def _look(self, trial: Trial) -> bool:
        """Read a trial's reports and end; return whether it is now pruned."""
        queue = self._queues[trial.bucket]
        job = queue.read(trial.job)
        if job is None:
            return False
        made = Reports(queue, trial.job, self.sweep.metric)
        reports = self._reports.setdefault(trial.number, made)
        known = replace(trial, reports=_thinned(reports.read()))
        if job.is_over:
            self._set(_ended(known, job, reports.final(), self.sweep.metric))
            return False
        self._set(known)
        if known.reports == trial.reports or not is_poor(self.sweep, known):
            return False
        step, value = known.reports[-1]
        self._set(replace(known, state=PRUNED, value=value))
        self._say(f"trial {trial.number} is ended early: {value:g} at step {step}")
        return True

    def _fill(self, bucket: str) -> None:
        """Add trials until the queue has `parallel` of them.

        Parameters that are chosen now know fewer results than those chosen later: so no more trials
        are in a queue than keep its TPU busy.
        """
        while (number := len(self.sweep.trials)) < self.sweep.wanted and (
            len(self.sweep.open_ones(bucket)) < self.sweep.parallel
        ):
            name = job_of(self.sweep.name, number)
            self._set(Trial(number, bucket, name, next_params(self.sweep)))

    def _submit(self, trial: Trial) -> None:
        if trial.number in self._begun:
            return
        queue = self._queues[trial.bucket]
        # The command that wrote it into the record may have ended before it submitted the job.
        if queue.read(trial.job) is None:
            command = command_with(self.sweep.spec.command, trial.params)
            jobs.submit(queue, replace(self.sweep.spec, command=command), trial.job, None)
            shown = ", ".join(f"{name}={value}" for name, value in trial.params.items())
            self._say(f"trial {trial.number} is submitted as {trial.job}: {shown}")
        self._begun.add(trial.number)

    def _set(self, trial: Trial) -> None:
        self.sweep = self.sweep.having(trial)
        if trial.state in (COMPLETE, FAILED):
            outcome = f"{trial.value:g}" if trial.value is not None else trial.why
            self._say(f"trial {trial.number} is {trial.state}: {outcome}")


def _ended(trial: Trial, job: Job, value: float | None, metric: str) -> Trial:
    if job.state != SUCCEEDED:
        why = f"its job is {job.state}" + (f" ({job.reason})" if job.reason else "")
        return replace(trial, state=FAILED, why=why)
    if value is None or not math.isfinite(value):
        why = f"it wrote no {metric}" if value is None else f"its {metric} is {value}"
        return replace(trial, state=FAILED, why=why)
    return replace(trial, state=COMPLETE, value=value)


def _thinned(reports: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Return finite reports, at most _MOST_REPORTS of them.

    What is kept of a longer trial is also kept of a shorter one: pruners compare equal steps.
    """
    finite = tuple(one for one in reports if math.isfinite(one[1]))
    every = 1
    while len(finite) // every > _MOST_REPORTS:
        every *= 2
    return finite[every - 1 :: every]
