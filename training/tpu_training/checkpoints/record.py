"""What a checkpoint says about the job that wrote it, beside the variables."""

import dataclasses
import json
from typing import Any

import tensorflow as tf

from tpu_training.models.params import Params

# Where TensorFlow puts it, when it is called `record` in the tf.train.Checkpoint.
_TENSOR = "record/.ATTRIBUTES/py_state"
# What may change between two starts and still be the same training.
_HARMLESS = (
    "connect_tries",
    "connect_interval",
    "local_devices",
    "hang_timeout",
    "evaluation_batch_size",
    "evaluation_interval",
    "keep_checkpoints",
    "checkpoint_interval",
    "steps_per_loop",
)


# step, accuracy and loss of the best evaluation
Best = dict[str, float]


class JobRecord(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The model's name, its parameters, and the best evaluation until now."""

    def __init__(self, model: str, params: Params) -> None:
        """Nothing evaluated yet."""
        super().__init__()
        # A user's own file is the same one wherever it lies.
        self.model = model.rpartition("/")[2]
        self.params: dict[str, Any] = dataclasses.asdict(params)
        self.best: Best | None = None

    def serialize(self) -> str:
        """The text that is saved."""
        content = {"model": self.model, "params": self.params, "best": self.best}
        return json.dumps(content, sort_keys=True)

    def deserialize(self, string_value: bytes) -> None:
        """Take over the best evaluation; model and parameters stay those of this job."""
        self.best = json.loads(string_value)["best"]

    def differences(self, path: str) -> list[str]:
        """What the job that wrote the checkpoint at `path` had otherwise, one sentence each."""
        theirs = _read(path)
        if not theirs:
            return []
        found = [f"model={theirs['model']}"] if theirs["model"] != self.model else []
        for name in sorted(theirs["params"].keys() | self.params.keys()):
            before, now = theirs["params"].get(name), self.params.get(name)
            if before != now and name not in _HARMLESS:
                found.append(f"{name}={before}")
        return found


def best_of(path: str) -> Best | None:
    """The best evaluation that the checkpoint at `path` knows of; None when it can't be read."""
    try:
        return _read(path).get("best")
    except (tf.errors.OpError, RuntimeError, ValueError):
        return None


def _read(path: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(path)
    content: dict[str, Any] = {}
    if reader.has_tensor(_TENSOR):
        content = json.loads(reader.get_tensor(_TENSOR))
    return content
