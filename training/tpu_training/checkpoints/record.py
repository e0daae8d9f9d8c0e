"""The record of its job that a checkpoint holds beside the variables."""

import dataclasses
import json
from typing import Any

import tensorflow as tf

from tpu_training.checkpoints.history import History
from tpu_training.models.params import Params

# The key of the tf.train.Checkpoint's object `record`.
_TENSOR = "record/.ATTRIBUTES/py_state"
# Parameters that may change between two starts of the same training.
_HARMLESS = (
    "connect_tries",
    "connect_interval",
    "local_devices",
    "hang_timeout",
    "evaluation_batch_size",
    "evaluation_interval",
    "patience",
    "keep_checkpoints",
    "checkpoint_interval",
    "steps_per_loop",
)


# step, loss and metrics of the best evaluation
Best = dict[str, float]


class JobRecord(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The model's name, its parameters, the best evaluation so far, and the job's history."""

    def __init__(self, model: str, params: Params) -> None:
        """Start without an evaluation."""
        super().__init__()
        # A user's model file is identified by its name, wherever it lies.
        self.model = model.rpartition("/")[2]
        self.params: dict[str, Any] = dataclasses.asdict(params)
        self._defaults = {field.name: field.default for field in dataclasses.fields(params)}
        self.best: Best | None = None
        self.history = History()

    def serialize(self) -> str:
        """Return the text to save."""
        content = {
            "model": self.model,
            "params": self.params,
            "best": self.best,
            "history": dataclasses.asdict(self.history),
        }
        return json.dumps(content, sort_keys=True)

    def deserialize(self, string_value: bytes) -> None:
        """Adopt the saved best evaluation and history; the rest stays that of this job."""
        content = json.loads(string_value)
        self.best = content["best"]
        had = content.get("history", {})
        self.history = History(had.get("starts", 0) + 1, had.get("seconds", 0.0))

    def differences(self, path: str) -> list[str]:
        """List `name=value` for each setting in which the writer of `path` differs."""
        theirs = _read(path)
        if not theirs:
            return []
        found = [f"model={theirs['model']}"] if theirs["model"] != self.model else []
        # What an older version did not know was as it is by default.
        had = self._defaults | theirs["params"]
        for name in sorted(had.keys() | self.params.keys()):
            before, now = had.get(name), self.params.get(name)
            if before != now and name not in _HARMLESS:
                found.append(f"{name}={before}")
        return found

    def has_seen_more(self, path: str) -> str:
        """Say why the model of `path` was trained on examples that are now held out, if it was."""
        theirs, fraction = _read(path).get("params", {}), self.params.get("validation_fraction", 0)
        chosen = [("validation_fraction", fraction), ("seed", self.params.get("seed"))]
        changed = [
            f"{name}={theirs.get(name, 0)}" for name, now in chosen if theirs.get(name, 0) != now
        ]
        return f"was trained with {', '.join(changed)}" if fraction and changed else ""


def best_of(path: str) -> Best | None:
    """Return the best evaluation recorded in the checkpoint at `path`; None if unreadable."""
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
