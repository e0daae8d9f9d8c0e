"""Write the results of a job to `metrics.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.manifest import TEST, VALIDATION
from tpu_training.job.job import Job
from tpu_training.loop.evaluation import Evaluation
from tpu_training.loop.train import TrainResult
from tpu_training.monitoring.terminal import Progress

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
    def of(cls, cluster: Cluster, job: Job, data: DataSet) -> "Metrics":
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
