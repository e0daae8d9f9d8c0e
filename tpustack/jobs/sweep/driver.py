"""Brings a sweep on, a step at a time: reads trials, ends poor ones, submits new ones."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from tpu_agent.jobs.queue import QUEUED, SUCCEEDED, Job, Queue, Spec
from tpustack.jobs.stop import stop
from tpustack.jobs.submit import submit
from tpustack.jobs.sweep import tuner
from tpustack.jobs.sweep.objective import Reports
from tpustack.jobs.sweep.record import COMPLETE, FAILED, PRUNED, Record, Sweep, Trial, job_of
from tpustack.jobs.sweep.space import command_with
from tpustack.jobs.vertex import follow as vertex
from tpustack.jobs.vertex.submit import hand_over

_PAUSE = 2.0
# Vertex AI is asked less often than the bucket.
_ASK_EVERY = 10
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
        self,
        sweep: Sweep,
        record: Record,
        queues: Mapping[str, Queue],
        say: Callable[[str], None],
    ) -> None:
        self.sweep = sweep
        self._record, self._queues, self._say = record, queues, say
        self._reports: dict[int, Reports] = {}
        self._begun: set[int] = set()
        self._steps = itertools.count()

    def run(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Go on until every trial has ended. Raises StoreError or TpustackError."""
        for trial in self.sweep.trials:
            queue = self._queues[trial.bucket]
            # Whoever marked it may have been ended before it was stopped.
            if trial.state == PRUNED and (job := queue.read(trial.job)) and not job.is_over:
                stop(queue, trial.job)
        while True:
            self.step()
            if self.sweep.is_over:
                return
            sleep(_PAUSE)

    def step(self) -> None:
        """Do what is to be done now."""
        before, asks = self.sweep, next(self._steps) % _ASK_EVERY == 0
        poor = [trial for trial in before.open_ones() if self._look(trial, asks=asks)]
        for bucket in before.buckets:
            self._fill(bucket)
        if self.sweep != before:
            self._record.write(self.sweep)
        # What is done outside of the record is done after it is written.
        for trial in poor:
            stop(self._queues[trial.bucket], trial.job)
        for trial in self.sweep.open_ones():
            self._submit(trial)

    def _look(self, trial: Trial, *, asks: bool) -> bool:
        """Take in what has become of a trial; return whether it is to be ended early."""
        queue = self._queues[trial.bucket]
        job = queue.read(trial.job)
        if job is None:
            return False
        job = vertex.refreshed(queue, job) if asks and trial.number in self._begun else job
        reports = self._reports_of(trial)
        known = replace(trial, reports=_thinned(reports.read()))
        if job.is_over:
            self._set(_ended(known, job, reports.final(), self.sweep.metric))
            return False
        self._set(known)
        if known.reports == trial.reports or not tuner.is_poor(self.sweep, known):
            return False
        step, value = known.reports[-1]
        self._set(replace(known, state=PRUNED, value=value))
        self._say(f"trial {trial.number} is ended early: {value:g} at step {step}")
        return True

    def _fill(self, bucket: str) -> None:
        """Add trials until the queue has as many as it shall have."""
        while (
            len(self.sweep.trials) < self.sweep.wanted
            and len(self.sweep.open_ones(bucket)) < self.sweep.parallel
        ):
            number = len(self.sweep.trials)
            params = tuner.next_params(self.sweep)
            self._set(Trial(number, bucket, job_of(self.sweep.name, number), params))

    def _submit(self, trial: Trial) -> None:
        if trial.number in self._begun:
            return
        queue = self._queues[trial.bucket]
        there = queue.read(trial.job)
        job = there or submit(queue, self._spec(trial), trial.job, None)
        place = self._place(trial)
        if there and place:
            # The command that submitted it may have ended before Vertex AI had it, or answered.
            job = vertex.refreshed(queue, there, math.inf)
        if job.state == QUEUED and not job.custom_job:
            hand_over(queue, job, place)
        self._begun.add(trial.number)
        if there is None:
            shown = ", ".join(f"{name}={value}" for name, value in trial.params.items())
            self._say(f"trial {trial.number} is submitted as {trial.job}: {shown}")

    def _spec(self, trial: Trial) -> Spec:
        command = command_with(self.sweep.spec.command, trial.params)
        return replace(self.sweep.spec, command=command, vertex=self._place(trial))

    def _place(self, trial: Trial) -> dict[str, str]:
        return self.sweep.places.get(trial.bucket, {})

    def _reports_of(self, trial: Trial) -> Reports:
        queue = self._queues[trial.bucket]
        made = Reports(queue, trial.job, self.sweep.metric)
        return self._reports.setdefault(trial.number, made)

    def _set(self, trial: Trial) -> None:
        self.sweep = self.sweep.having(trial)
        if trial.state in (COMPLETE, FAILED):
            said = f"{trial.value:g}" if trial.value is not None else trial.why
            self._say(f"trial {trial.number} is {trial.state}: {said}")


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
