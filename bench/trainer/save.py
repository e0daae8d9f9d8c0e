"""How long a save holds the steps, and how long it takes in all; prints JSON.

Usage: python -m bench.trainer.save FOLDER

The variables lie on a device of their own, as on a TPU: one of the two parts into which the
processor is split. A copy to the other part stands for one to the TPU's host.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

from tpu_training.checkpoints import checkpoints
from tpu_training.checkpoints.checkpoints import CheckpointWriter
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import NoTpu, Wait

# ResNet-50 with momentum has 0.2 GB; this is 0.4 in 200 variables.
_VARIABLES, _NUMBERS, _SAVES = 200, 500_000, 5


def main(folder: str) -> None:
    """Save some times; the first time compiles the copy."""
    cluster = connect(NoTpu(), Wait(), local_devices=2)
    vars(checkpoints)["host_of"] = lambda device: "/job:localhost/replica:0/task:0/device:CPU:1"
    with tf.device("/cpu:0"):
        variables = [tf.Variable(tf.ones((_NUMBERS,))) for _ in range(_VARIABLES)]
    checkpoint = tf.train.Checkpoint(variables=variables)
    writer = CheckpointWriter(checkpoint, cluster, {folder: 1}, lambda: None)
    held, whole = [], []
    for number in range(_SAVES + 1):
        begun = time.perf_counter()
        writer.save(folder, number)
        held.append(time.perf_counter() - begun)
        writer.wait()
        whole.append(time.perf_counter() - begun)
    found = {"held": held[1:], "whole": whole[1:]}
    print(json.dumps({name: statistics.median(seconds) for name, seconds in found.items()}))


if __name__ == "__main__":
    main(sys.argv[1])
