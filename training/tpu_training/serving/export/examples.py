"""Read examples of a data set as arrays, preprocessed as in training."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import evaluation_batches, training_batches
from tpu_training.models.params import Params
from tpu_training.serving.export.restore import this_machine


@dataclass(frozen=True)
class LabelledBatch:
    """Features (batch, …) from the input pipeline, and labels, int32 (batch,)."""

    features: npt.NDArray[np.generic]
    labels: npt.NDArray[np.int32]


def training_examples(data: DataSet, params: Params, count: int) -> list[LabelledBatch]:
    """Return about `count` examples of the training set in one batch."""
    with tf.device("/cpu:0"):
        next_batch = training_batches(
            data, this_machine(), dataclasses.replace(params, global_batch_size=count)
        )
        features, labels = next_batch()
    return [LabelledBatch(features.numpy(), labels.numpy())]


def test_examples(data: DataSet, params: Params, batch: int) -> Iterator[LabelledBatch]:
    """Yield every test example once, in order, in batches of at most `batch`."""
    params = dataclasses.replace(params, evaluation_batch_size=batch)
    next_batch, steps = evaluation_batches(data, this_machine(), params)
    for _ in range(steps):
        features, labels, weights = (part.numpy() for part in next_batch())
        real = weights > 0
        yield LabelledBatch(features[real], labels[real])
