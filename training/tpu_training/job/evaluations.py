"""When a job evaluates: the validation set between its loops, the test set once at its end."""

from collections.abc import Callable

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.manifest import TEST, VALIDATION
from tpu_training.job.job import Job
from tpu_training.job.metrics import Metrics
from tpu_training.loop.callbacks import Callback
from tpu_training.loop.evaluation import Evaluation, create_evaluation
from tpu_training.loop.state import TrainState
from tpu_training.monitoring.model_summaries import ModelSummaries
from tpu_training.monitoring.summaries import Summaries


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
