"""Which training examples probably have a wrong label: a look at all of them after the training."""

import json
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import files
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import evaluation_batches
from tpu_training.data.manifest import TRAIN
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.loop.averaging import averaged
from tpu_training.loop.state import TrainState
from tpu_training.models.spec import CLASS

FILE_NAME = "doubtful.json"

Array = npt.NDArray[Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Looked:
    """What the model says of each training example, in the order of the files."""

    losses: Array
    labels: Array
    predicted: Array
    own: Array
    highest: Array

    @property
    def doubtful(self) -> Array:
        """Where the label is probably wrong, as Northcutt et al. find it (arXiv:1911.00068).

        Where another class is as probable as it is on average for the examples labelled with it.
        """
        counts = np.bincount(self.labels)
        usual = np.bincount(self.labels, self.own) / np.maximum(counts, 1)
        known = np.append(usual, np.inf)[np.minimum(self.predicted, len(usual))]
        doubtful: Array = (self.predicted != self.labels) & (self.highest >= known)
        return doubtful

    def worst(self, count: int) -> list[dict[str, Any]]:
        """Return the `count` examples of the highest loss."""
        order = np.argsort(-self.losses, kind="stable")[:count]
        doubtful = self.doubtful
        return [
            {
                "example": int(number),
                "label": int(self.labels[number]),
                "predicted": int(self.predicted[number]),
                "loss": round(float(self.losses[number]), 4),
                "probability_of_label": round(float(self.own[number]), 4),
                "probability_of_predicted": round(float(self.highest[number]), 4),
                "probably_wrong": bool(doubtful[number]),
            }
            for number in order
        ]


def check_doubtful(job: Job, data: DataSet, state: TrainState, cluster: Cluster) -> None:
    """Raise InputError where the job asks for a list of labels that there can't be."""
    count = job.params.doubtful_labels
    if count and not (state.task.gives_classes and data.manifest.spec.targets == CLASS):
        raise InputError(
            f"--doubtful_labels={count}: is for examples with one class each, but the task is "
            f"{state.task.name}; omit it"
        )
    if count and len(cluster.workers) > 1:
        raise InputError(
            f"--doubtful_labels={count}: takes one worker, as each reads its own files, but there "
            f"are {len(cluster.workers)}; omit it"
        )


def write_doubtful(cluster: Cluster, job: Job, data: DataSet, state: TrainState) -> None:
    """Write the training examples of the highest loss to the model directory, if asked for."""
    if not (job.trains and job.params.doubtful_labels):
        return
    looked = look(cluster, job, data, state)
    count, whole = int(looked.doubtful.sum()), len(looked.losses)
    content = {
        "class_names": list(data.manifest.class_names),
        "examples": looked.worst(job.params.doubtful_labels),
        "probably_wrong": count,
        "of": whole,
    }
    path = f"{job.model_dir.rstrip('/')}/{FILE_NAME}"
    files.write_text(path, json.dumps(content) + "\n")
    logger.info("labels: %d of %d training examples are probably wrong: %s", count, whole, path)


def look(cluster: Cluster, job: Job, data: DataSet, state: TrainState) -> Looked:
    """Evaluate every training example, without augmentation, with the averaged weights."""
    next_batch, steps = evaluation_batches(data, cluster, job.params, TRAIN)

    def replica(features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        inputs, targets = state.prepare(features, labels, False)
        logits = state.forward(inputs, training=False)
        probabilities = tf.nn.softmax(logits)
        own = tf.gather(probabilities, targets, axis=1, batch_dims=1)
        # One tensor, as each is a round trip; float32 holds class numbers up to 16.7 million.
        columns = [
            -tf.math.log(tf.maximum(own, 1e-30)),
            tf.cast(targets, tf.float32),
            tf.cast(tf.argmax(logits, axis=1), tf.float32),
            own,
            tf.reduce_max(probabilities, axis=1),
            weights,
        ]
        return tf.stack(columns, axis=1)

    step = tf.function(lambda: cluster.strategy.run(replica, next_batch()), autograph=False)
    rows: list[Array] = []
    with averaged(cluster, state.average), cluster.on_loop_device():
        for _ in range(steps):
            parts = cluster.strategy.experimental_local_results(step())
            rows += [part.numpy() for part in parts]
    table = np.concatenate(rows)
    losses, labels, predicted, own, highest, _ = table[table[:, 5] > 0].T
    return Looked(losses, labels.astype(int), predicted.astype(int), own, highest)
