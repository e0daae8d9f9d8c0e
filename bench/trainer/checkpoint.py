"""What training loses to a checkpoint, asynchronous and synchronous; prints JSON.

Usage: python -m bench.trainer.checkpoint DATA TARGET LOOPS STEPS ROUNDS

A turn is LOOPS loops of STEPS steps, as the trainer does them. What a checkpoint costs is how much
longer a turn takes that begins with one: so the writing behind it counts as well, as far as it
takes the processor from the steps. TARGET is a folder or a gs:// URL.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.data_set import open_data
from tpu_training.data.input.pipeline import training_batches
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

_WARM_UP = 2
_KEEP = 3


class Turns:
    """Turns of training, with and without a checkpoint at their beginning."""

    def __init__(self, data: Path, target: str, loops: int, steps: int) -> None:
        """Prepare the MNIST CNN with Adam's moments, checkpoints of which go to `target`."""
        found, params = open_data(str(data)), Params(global_batch_size=64)
        cluster, definition = connect(NoTpu(), Wait(), 0), load_model("mnist_cnn")
        state = create_train_state(cluster, definition, params, found.manifest, 10**6)
        batches = training_batches(found, cluster, params)
        self._loop = create_train_loop(cluster, params, state, batches)
        self._loops, self._steps = loops, steps
        record = JobRecord(definition.name, params)
        self._checkpoints = Checkpoints(f"{target}/ours", state, record, _KEEP, cluster)
        self._manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(
                model=state.model, optimizer=state.optimizer, step=state.step, record=record
            ),
            f"{target}/tensorflow",
            max_to_keep=_KEEP,
        )
        self._number = 0

    def plain(self) -> None:
        """No checkpoint."""
        for _ in range(self._loops):
            float(self._loop(tf.constant(self._steps))[0])

    def asynchronous(self) -> None:
        """The trainer's checkpoint, written while the turn goes on."""
        self._save()
        self.plain()

    def waited_for(self) -> None:
        """The trainer's checkpoint, written before the turn goes on."""
        self._save()
        self._checkpoints.wait()
        self.plain()

    def synchronous(self) -> None:
        """TensorFlow's own checkpoint of the same."""
        self._manager.save()
        self.plain()

    def seconds(self, turn: Callable[[], None]) -> float:
        """How long `turn` takes until nothing is left to be written."""
        begun = time.perf_counter()
        turn()
        self._checkpoints.wait()
        return time.perf_counter() - begun

    def _save(self) -> None:
        self._number += 1
        self._checkpoints.save(self._number)


def main(data: Path, target: str, loops: int, steps: int, rounds: int) -> None:
    """What is lost is told by the plain turns before and after."""
    turns = Turns(data, target, loops, steps)
    kinds = (turns.asynchronous, turns.waited_for, turns.synchronous)
    lost: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
    before = turns.seconds(turns.plain)
    for _ in range(_WARM_UP + rounds):
        for kind in kinds:
            taken, after = turns.seconds(kind), turns.seconds(turns.plain)
            lost[kind.__name__].append(taken - (before + after) / 2)
            before = after
    print(json.dumps({kind: statistics.median(all_[_WARM_UP:]) for kind, all_ in lost.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6]))
