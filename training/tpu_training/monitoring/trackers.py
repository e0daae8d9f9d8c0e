"""Weights & Biases and MLflow, through their own libraries, which read their own settings."""

import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tpu_training.data import files
from tpu_training.errors import TrainingError, require
from tpu_training.loop.callbacks import Callback, LoopReport

_FILE_NAME, _FORMAT = "tracker.json", 1

logger = logging.getLogger(__name__)


class Run(Protocol):
    """A run of a tracker."""

    id: str

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send values."""

    def finish(self, whole: bool) -> None:
        """End the run; `whole` says that the training came to its end."""


class Wandb:
    """A run of Weights & Biases: WANDB_PROJECT, WANDB_API_KEY, WANDB_MODE and the like count."""

    def __init__(self, known: str | None, name: str, params: Mapping[str, Any]) -> None:
        library = require("wandb", "wandb", "wandb", "--tracker=wandb")
        self._run = library.init(id=known, name=name, config=dict(params), resume="allow")
        self.id = str(self._run.id)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send values."""
        self._run.log(dict(scalars), step=step)

    def finish(self, whole: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=0 if whole else 1)


class Mlflow:
    """A run of MLflow: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and the like count."""

    def __init__(self, known: str | None, name: str, params: Mapping[str, Any]) -> None:
        self._library = require("mlflow", "mlflow-skinny", "mlflow", "--tracker=mlflow")
        self.id = str(self._library.start_run(run_id=known, run_name=name).info.run_id)
        if known is None:  # A run's parameters can't be changed.
            self._library.log_params(dict(params))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send values."""
        self._library.log_metrics(dict(scalars), step=step)

    def finish(self, whole: bool) -> None:
        """End the run."""
        self._library.end_run("FINISHED" if whole else "KILLED")


_RUNS: Mapping[str, Callable[[str | None, str, Mapping[str, Any]], Run]] = {
    "wandb": Wandb,
    "mlflow": Mlflow,
}


class Tracker(Callback):
    """Sends a training's parameters, curves and evaluations to a tracker.

    A job that is started again continues its run, whose id is in the model directory. A value that
    can't be sent does not end the training: it is logged.
    """

    def __init__(self, kind: str, model_dir: str, params: Mapping[str, Any]) -> None:
        self._kind, self._name, self._params = kind, model_dir, params
        self._path = f"{model_dir.rstrip('/')}/{_FILE_NAME}"
        self._run: Run | None = None

    def start(self, step: int) -> None:
        """Start or continue the run. Raises TrainingError if the tracker does not answer."""
        known = files.read_json(self._path).get(self._kind)
        try:
            self._run = _RUNS[self._kind](known, self._name, self._params)
        except TrainingError:
            raise
        except Exception as error:  # Each library has its own errors.
            raise TrainingError(f"--tracker={self._kind}: no run was started ({error})") from error
        files.write_text(
            self._path, json.dumps({"format": _FORMAT, self._kind: self._run.id}) + "\n"
        )

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Send the loop's figures."""
        self._send(
            step,
            {
                "train/loss": report.loss,
                **{f"train/{name}": value for name, value in report.metrics.items()},
                "train/learning_rate": report.learning_rate,
                "train/gradient_norm": report.gradient_norm,
                "train/steps_per_second": report.count / report.seconds,
            },
        )

    def after_evaluation(self, step: int, figures: Mapping[str, float]) -> None:
        """Send the figures of an evaluation."""
        self._send(step, figures)

    def close(self) -> None:
        """End the run; as a whole one unless an exception ends the training."""
        whole = sys.exc_info()[0] is None
        self._try(lambda run: run.finish(whole))

    def _send(self, step: int, scalars: Mapping[str, float]) -> None:
        self._try(lambda run: run.log(step, scalars))

    def _try(self, send: Callable[[Run], None]) -> None:
        if not self._run:
            return
        try:
            send(self._run)
        except Exception as error:  # Each library has its own errors.
            logger.warning("%s: %s", self._kind, str(error).partition("\n")[0])
