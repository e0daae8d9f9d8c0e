"""What training loses to a checkpoint, asynchronous and synchronous; prints JSON.

Usage: python -m bench.training.checkpoint DATA
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

from training.checkpoints import Checkpoints
from training.cluster import connect
from training.data_set import open_data
from training.endpoint.environment import NoTpu
from training.endpoint.wait import Wait
from training.input_pipeline import training_batches
from training.job_record import JobRecord
from training.model_registry import load_model
from training.params import Params
from training.state import create_train_state
from training.train_loop import create_train_loop

_ROUNDS = 15


def main(folder: Path) -> None:
    """A save, waited for or not, then a step: it pays for the copy where nobody else did."""
    data, params = open_data(str(folder)), Params(global_batch_size=64)
    cluster, definition = connect(NoTpu(), Wait(), 0), load_model("mnist_cnn")
    state = create_train_state(cluster, definition, params, data.manifest, 10**6)
    loop = create_train_loop(cluster, params, state, training_batches(data, cluster, params))
    with tempfile.TemporaryDirectory() as target:
        record = JobRecord(definition.name, params)
        checkpoints = Checkpoints(target, state, record, 3, cluster)
        lost: dict[str, list[float]] = {"async": [], "sync": []}
        for number in range(_ROUNDS):
            for kind in lost:
                step = _timed(lambda: float(loop(tf.constant(1))[0]))
                begun = time.perf_counter()
                checkpoints.save(2 * number + (kind == "sync"))
                if kind == "sync":
                    checkpoints.wait()
                float(loop(tf.constant(1))[0])
                lost[kind].append(time.perf_counter() - begun - step)
                checkpoints.wait()
    seconds = {kind: statistics.median(values[2:]) for kind, values in lost.items()}
    print(json.dumps({"ratio": max(0.0, seconds["async"]) / seconds["sync"], **seconds}))


def _timed(action: object) -> float:
    begun = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - begun


if __name__ == "__main__":
    main(Path(sys.argv[1]))
