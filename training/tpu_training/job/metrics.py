"""Write the results of a job to `metrics.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.job.job import Job
from tpu_training.loop.evaluate import Evaluation
from tpu_training.loop.train import TrainResult
from tpu_training.monitoring.progress import Progress

_FILE_NAME = "metrics.json"
_SUMMARY = ("test_accuracy", "test_loss", "steps", "steps_per_second", "replicas")


@dataclass
class Metrics:
    """Measured values by name. Rates are per second; losses are means over examples."""

    values: dict[str, Any] = field(default_factory=dict)

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
            }
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
        self.values["test_accuracy"] = evaluation.accuracy
        self.values["test_loss"] = evaluation.loss
        self.values["test_examples"] = evaluation.examples

    def add_best(self, best: Mapping[str, float]) -> None:
        """Add the best test accuracy so far and its step."""
        self.values["best_accuracy"] = best["accuracy"]
        self.values["best_step"] = best["step"]

    def write(self, model_dir: str) -> str:
        """Merge the values into the file of an earlier run; return a summary line."""
        path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
        merged = {**files.read_json(path), **self.values}
        files.write_text(path, json.dumps(merged, indent=2, sort_keys=True) + "\n")
        shown = [f"{name}={_short(merged[name])}" for name in _SUMMARY if name in merged]
        return " ".join([*shown, f"metrics={path}"])


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
