"""When a job evaluates: the validation set between its loops, the test set once at its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.manifest import TEST, VALIDATION
from tpu_training.job.job import Job
from tpu_training.loop.callbacks import Callback
from tpu_training.loop.evaluation import Evaluation, create_evaluation
from tpu_training.loop.state import TrainState
from tpu_training.loop.train import TrainResult
from tpu_training.monitoring.model_summaries import ModelSummaries
from tpu_training.monitoring.summaries import Summaries
from tpu_training.monitoring.terminal import Progress


class Evaluations:
    """Evaluates a job's model, keeps the best checkpoint and says when to stop early."""

    def __init__(
        self,
        cluster: Cluster,
        job: Job,
        data: DataSet,
        state: TrainState,
        checkpoints: Checkpoints,
        metrics: Metrics,
        summaries: Summaries,
        observer: Callback,
        pictures: ModelSummaries,
        check: Callable[[], None],
    ) -> None:
        """Compile nothing before the first evaluation; tell `observer` each one's figures."""
        self._observer, self._pictures = observer, pictures
        self._checkpoints, self._metrics, self._summaries = checkpoints, metrics, summaries
        self._figure = state.task.best
        self._patience = job.params.patience * job.params.evaluation_interval
        splits = [VALIDATION] if job.trains and VALIDATION in data.manifest.splits else []
        splits += [TEST] if job.evaluates else []
        self._evaluate = {
            split: create_evaluation(cluster, job.params, data, state, split, check)
            for split in splits
        }

    def validate(self, step: int) -> None:
        """Evaluate the validation set, if there is one; keep the checkpoint if it is the best."""
        if VALIDATION in self._evaluate:
            evaluation = self._take(VALIDATION, step)
            best = self._checkpoints.keep_best(step, evaluation.figures)
            self._metrics.add_best(best, self._figure)

    def test(self, step: int) -> None:
        """Evaluate the test set, if the job's mode asks for it."""
        if TEST in self._evaluate:
            self._take(TEST, step)

    def exhausted(self, step: int) -> bool:
        """Return whether the best evaluation is `patience` evaluations old."""
        best = self._checkpoints.record.best
        return bool(self._patience and best and step - best["step"] >= self._patience)

    def _take(self, split: str, step: int) -> Evaluation:
        evaluation = self._evaluate[split]()
        self._summaries.scalars(step, evaluation.scalars)
        self._metrics.add_evaluation(evaluation)
        self._pictures.evaluated(step, evaluation)
        self._observer.after_evaluation(step, evaluation.scalars)
        return evaluation


# --- Write the results of a job to `metrics.json`.

_FILE_NAME = "metrics.json"
# Which classes were taken for which, by name; rows are the true ones.
CLASSES_FILE = "classes.json"
_SUMMARY = ("test_loss", "steps", "steps_per_second", "replicas")


@dataclass
class Metrics:
    """Measured values by name. Rates are per second; losses are means over examples."""

    values: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    confusion: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, cluster: Cluster, job: Job, data: DataSet) -> Metrics:
        """Collect the values that are known before the first step."""
        return cls(
            {
                "endpoint": cluster.endpoint,
                "model": job.model.name,
                "strategy": cluster.strategy_name,
                "replicas": cluster.replicas,
                "tensorflow": tf.__version__,
                "data": data.manifest.name,
                "global_batch_size": job.params.global_batch_size,
            },
            data.manifest.class_names,
        )

    def add_training(self, result: TrainResult, progress: Progress) -> None:
        """Add the results of the training."""
        self.values["steps"] = result.steps
        if progress.steps_per_second:
            self.values["train_loss"] = result.loss
            self.values["steps_per_second"] = round(progress.steps_per_second, 3)
            self.values["examples_per_second"] = round(progress.examples_per_second, 1)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Add the results of an evaluation."""
        self.values.update(
            {f"{evaluation.split}_{name}": value for name, value in evaluation.figures.items()}
        )
        self.values[f"{evaluation.split}_examples"] = evaluation.examples
        self.metrics = tuple(evaluation.metrics)
        if evaluation.split == TEST:
            self.confusion = evaluation.tables.get("confusion", [])

    def add_best(self, best: Mapping[str, float], figure: str) -> None:
        """Add the best `figure` of the validation set so far and its step."""
        self.values[f"best_{figure}"] = best[figure]
        self.values["best_step"] = best["step"]

    def write(self, model_dir: str) -> tuple[str, dict[str, Any]]:
        """Merge the values into the file of an earlier run; return a summary line and them."""
        path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
        merged = {**files.read_json(path), **self.values}
        files.write_text(path, json.dumps(merged, indent=2, sort_keys=True) + "\n")
        if self.confusion:
            names = self.class_names or range(len(self.confusion))
            content = {"class_names": [str(name) for name in names], "confusion": self.confusion}
            files.write_text(f"{model_dir.rstrip('/')}/{CLASSES_FILE}", json.dumps(content) + "\n")
        splits = (TEST, VALIDATION)
        metrics = [f"{split}_{name}" for split in splits for name in self.metrics]
        shown = [
            f"{name}={_short(merged[name])}" for name in (*metrics, *_SUMMARY) if name in merged
        ]
        return " ".join([*shown, f"metrics={path}"]), merged


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
