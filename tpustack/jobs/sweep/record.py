"""What a sweep is, as it lies in the bucket: `sweeps/NAME.json`, written by one command at a time.

A trial stands there before its job is submitted, so that whoever goes on with the sweep submits
what is missing and nothing twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from tpu_agent.jobs.queue import Spec
from tpu_core.bucket import Bucket, Conflict
from tpu_core.records import Unreadable, dump, load
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.sweep.space import Value, space_of

OPEN, COMPLETE, PRUNED, FAILED = "open", "complete", "pruned", "failed"
Goal = Literal["minimize", "maximize"]
MINIMIZE: Goal = "minimize"
MAXIMIZE: Goal = "maximize"


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
        places: where Vertex AI runs the trials of each bucket; empty if the stacks run them.
    """

    name: str
    params: tuple[str, ...]
    spec: Spec
    metric: str
    goal: Goal
    pruner: str
    wanted: int
    parallel: int
    seed: int
    buckets: tuple[str, ...]
    trials: tuple[Trial, ...] = ()
    places: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def best(self) -> Trial | None:
        """The best of the trials that are complete."""
        sign = 1 if self.goal == MINIMIZE else -1
        complete = [one for one in self.trials if one.state == COMPLETE]
        done = [(sign * one.value, one) for one in complete if one.value is not None]
        return min(done, key=lambda pair: pair[0])[1] if done else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return len(self.trials) >= self.wanted and not self.open_ones()

    def open_ones(self, bucket: str | None = None) -> list[Trial]:
        """Return the trials that have not ended, all or those of one bucket."""
        return [one for one in self.trials if one.state == OPEN and bucket in (None, one.bucket)]

    def having(self, trial: Trial) -> Sweep:
        """Return the sweep with a trial that is new or has changed."""
        others = [one for one in self.trials if one.number != trial.number]
        trials = sorted([*others, trial], key=lambda one: one.number)
        return replace(self, trials=tuple(trials))

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        best = self.best
        return {**asdict(self), "best": best.number if best else None}


class Record:
    """A sweep's record in a bucket, which notices if somebody else writes it."""

    def __init__(self, store: Bucket, name: str) -> None:
        self._store, self._path = store, f"sweeps/{name}.json"
        self._name, self._generation = name, 0

    def read(self) -> Sweep:
        """Return the sweep. Raises UsageError if there is none, or StoreError."""
        found = self._store.read(self._path)
        if found is None:
            raise UsageError(f"there is no sweep {self._name} in gs://{self._store.bucket}")
        self._generation = found[1]
        return _parse(found[0], self._name, self._path)

    def write(self, sweep: Sweep) -> None:
        """Write it. Raises TpustackError if it was changed since; UsageError if it is not new."""
        data = dump(sweep)
        try:
            self._generation = self._store.write(self._path, data, generation=self._generation)
        except Conflict:
            if not self._generation:
                raise UsageError(
                    f"--name: there is a sweep {self._name} already. `tpustack job sweep --resume "
                    f"{self._name}` goes on with it; another --name begins one anew"
                ) from None
            raise TpustackError(
                f"another command goes on with the sweep {self._name}: this one ends"
            ) from None


def _parse(data: bytes, name: str, path: str) -> Sweep:
    """Return the sweep of that name; anybody may have written its record."""
    try:
        sweep = load(Sweep, data)
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
            raise Unreadable(f"no sweep has what stands in its {', '.join(found)}")
    except (Unreadable, UsageError) as error:
        raise TpustackError(f"{path} is no record of a sweep: {error}") from None
    return sweep
