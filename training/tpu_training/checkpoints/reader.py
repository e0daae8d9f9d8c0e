"""What checkpoints hold: find the newest whole one, restore it, read its record and averages."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tpu_core import records
from tpu_training.errors import CheckpointError
from tpu_training.models.model import variable_paths
from tpu_training.models.params import Params

ANOTHER_DIRECTORY = (
    "choose another --model-dir, or use the model and parameters that it was trained with"
)
_NAME = re.compile(r"ckpt-(\d+)\.index")
# These errors are about reaching the checkpoint, not about its content.
_NOT_ABOUT_THE_FILE = (
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
)

# The path of WeightAverage's variables in a tf.train.Checkpoint.
_PREFIX, _SUFFIX = "average/shadows/", "/.ATTRIBUTES/VARIABLE_VALUE"
# How TensorFlow escapes names: tensorflow/python/checkpoint/trackable_view.py.
_ESCAPED = re.compile(r"\.(.)")
# The key of the tf.train.Checkpoint's object `record`.
_TENSOR = "record/.ATTRIBUTES/py_state"
# Parameters that may change between two starts of the same training.
_HARMLESS = {
    *("connect_tries", "connect_interval", "local_devices", "backend", "hang_timeout", "patience"),
    "eager",
    *("evaluation_batch_size", "evaluation_interval", "keep_checkpoints", "checkpoint_interval"),
    "steps_per_loop",
}
# step, loss and metrics of the best evaluation
Best = dict[str, float]
Value = bool | int | float | str | None | list[bool | int | float | str]

logger = logging.getLogger(__name__)


def plain(params: Params) -> dict[str, Value]:
    """Return the parameters by name, as JSON has them."""
    values = dataclasses.asdict(params)
    return {n: list(value) if isinstance(value, tuple) else value for n, value in values.items()}


def checkpoint_paths(directory: str) -> list[str]:
    """List paths without suffixes, newest first. The state file may be stale, so it is ignored."""
    try:
        names = tf.io.gfile.listdir(directory)
    except tf.errors.NotFoundError:
        return []
    steps = sorted((int(m[1]) for n in names if (m := _NAME.fullmatch(n))), reverse=True)
    return [f"{directory}/ckpt-{step}" for step in steps]


def newest_whole(directory: str) -> str | None:
    """Return the path of the newest complete checkpoint in `directory`, None if there is none.

    A checkpoint that was being written when the process was killed is skipped (tensorflow#61552).
    """
    for path in checkpoint_paths(directory):
        reason = _why_not_whole(path)
        if not reason:
            return path
        logger.warning("checkpoint: skipped %s, which is incomplete (%s)", path, reason)
    return None


def restore(checkpoint: tf.train.Checkpoint, path: str, device: str, hint: str = "") -> None:
    """Restore every object of `checkpoint` from `path`, read by `device`.

    Raises:
        CheckpointError: A value is missing or has another shape; the message includes `hint`.
    """
    options = tf.train.CheckpointOptions(experimental_io_device=device)
    try:
        status = checkpoint.restore(path, options=options)
        # Values left over are fine: an export has no optimizer.
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
        why = hint or str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} belongs to another model ({why}); {ANOTHER_DIRECTORY}"
        ) from error
    logger.info("checkpoint: restored %s", path)


def rebuilt(
    root: tf.train.Checkpoint, leaf: Callable[[tf.Variable], tf.Variable | None]
) -> tf.train.Checkpoint:
    """Rebuild the tree of `root` with what `leaf` returns for each variable; None leaves it out."""
    view = tf.train.TrackableView(root)
    known: dict[int, object] = {}

    def rebuild(node: object) -> object:
        if id(node) in known:
            return known[id(node)]
        if isinstance(node, tf.train.experimental.PythonState):
            known[id(node)] = node
        elif isinstance(node, tf.Variable):
            known[id(node)] = leaf(node)
        else:
            known[id(node)] = inner = tf.train.Checkpoint() if node is root else tf.Module()
            for name, child in view.children(node).items():
                # The new root has its own counter of saves.
                if name != "save_counter" and (made := rebuild(child)) is not None:
                    setattr(inner, name, made)
        return known[id(node)]

    return rebuild(root)


def without(
    checkpoint: tf.train.Checkpoint, unsaved: Collection[tf.Variable]
) -> tf.train.Checkpoint:
    """Return `checkpoint` without some of its variables."""
    left_out = {id(variable) for variable in unsaved}
    if not left_out:
        return checkpoint
    return rebuilt(checkpoint, lambda each: None if id(each) in left_out else each)


def digest_of(unsaved: Collection[tf.Variable]) -> str:
    """Return what tells the values of these variables from others; "" for none."""
    digest = hashlib.sha256()
    for variable in unsaved:
        digest.update(np.ascontiguousarray(variable.numpy()).tobytes())
    return digest.hexdigest() if unsaved else ""


def refuse_another_base(path: str, base: str) -> None:
    """Raise CheckpointError if the weights in `path` are for others than those of this digest."""
    if _read(path).base != base:
        raise CheckpointError(
            f"{path} has the trained weights alone (--checkpoint_weights=trained), and was trained "
            "with other frozen ones; take the model's code and --init_from of that training, or "
            f"{ANOTHER_DIRECTORY}"
        )


def _why_not_whole(path: str) -> str | None:
    """Read every tensor, which verifies their checksums; return the first problem.

    Errors of the network are raised: skipping a checkpoint for them would lose its progress.
    """
    try:
        reader = tf.train.load_checkpoint(path)
        for key in reader.get_variable_to_shape_map():
            reader.get_tensor(key)
    except _NOT_ABOUT_THE_FILE:
        raise
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError) as error:
        return str(getattr(error, "message", error)).partition("\n")[0]
    return None


def averaged_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the keys of averaged weights by the path of the variable that each follows."""
    return {
        _ESCAPED.sub(_unescape, key[len(_PREFIX) : -len(_SUFFIX)]): key
        for key in keys
        if key.startswith(_PREFIX) and key.endswith(_SUFFIX)
    }


def has_averages(path: str) -> bool:
    """Return whether the checkpoint at `path` has averaged weights."""
    return bool(averaged_keys(tf.train.load_checkpoint(path).get_variable_to_shape_map()))


def restore_averages(model: tf.Module, path: str) -> bool:
    """Give `model` the averaged weights in the checkpoint at `path`; return whether it has any."""
    reader = tf.train.load_checkpoint(path)
    averaged = averaged_keys(reader.get_variable_to_shape_map())
    if averaged:
        for name, variable in variable_paths(model):
            if name in averaged:
                variable.assign(reader.get_tensor(averaged[name]))
    return bool(averaged)


def _unescape(found: re.Match[str]) -> str:
    return "/" if found[1] == "S" else found[1]


class JobRecord(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The model's name, its parameters, the best evaluation so far, and the job's history.

    It is part of the checkpoint, and so as whole as the weights that it describes.
    """

    def __init__(self, model: str, params: Params, base: str = "") -> None:
        super().__init__()
        # A user's model file is identified by its name, in whatever folder.
        self.model = model.rpartition("/")[2]
        self.params, self.base = plain(params), base
        self.best: Best | None = None
        self.history = JobHistory()
        self.rate_factor = 1.0

    def serialize(self) -> str:
        """Return the text to save."""
        best: dict[str, float | None] | None = None
        if self.best:
            best = {n: value if math.isfinite(value) else None for n, value in self.best.items()}
        values = (self.model, self.params, best, self.history, self.rate_factor, self.base)
        saved = _Saved(*values)
        return records.dump(saved).decode()

    def deserialize(self, string_value: bytes) -> None:
        """Adopt the saved evaluation, history and factor; the rest stays that of this job."""
        saved = _parse(string_value, "the checkpoint")
        self.best, self.rate_factor = saved.best_figures, saved.rate_factor
        self.history = JobHistory(saved.history.starts + 1, saved.history.seconds)

    def differences(self, path: str) -> list[str]:
        """List `name=value` for each setting in which the writer of `path` differs."""
        theirs = _read(path)
        found = [f"model={theirs.model}"] if theirs.model != self.model else []
        had = theirs.params
        for name in sorted(had.keys() | self.params.keys()):
            before, now = had.get(name), self.params.get(name)
            if before != now and name not in _HARMLESS:
                found.append(f"{name}={before}")
        return found

    def has_seen_more(self, path: str) -> str:
        """Say why the model of `path` was trained on examples that are now held out, if it was."""
        theirs = _read(path).params
        changed = [
            f"{name}={theirs.get(name)}"
            for name in ("validation_fraction", "seed")
            if theirs.get(name) != self.params[name]
        ]
        held_out = self.params["validation_fraction"]
        return f"was trained with {', '.join(changed)}" if held_out and changed else ""


def best_of(path: str) -> Best | None:
    """Return the best evaluation recorded in the checkpoint at `path`; None if unreadable."""
    try:
        return _read(path).best_figures
    except (tf.errors.OpError, RuntimeError, ValueError, CheckpointError):
        return None


def _read(path: str) -> _Saved:
    return _parse(tf.train.load_checkpoint(path).get_tensor(_TENSOR), path)


def _parse(content: bytes, path: str) -> _Saved:
    try:
        return records.load(_Saved, content)
    except records.Unreadable as error:
        raise CheckpointError(
            f"{path}: the record of its training can't be read: {error}; {ANOTHER_DIRECTORY}"
        ) from None


@dataclass
class JobHistory:
    """How often the job was started, and for how long it has run in all."""

    starts: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class _Saved:
    """A JobRecord as it is in a checkpoint; JSON has no NaN, for which None stands."""

    model: str
    params: dict[str, Value]
    best: dict[str, float | None] | None
    history: JobHistory
    rate_factor: float = 1.0
    base: str = ""

    @property
    def best_figures(self) -> Best | None:
        """The best evaluation's step and figures; None before the first."""
        if not self.best:
            return None
        return {n: math.nan if value is None else value for n, value in self.best.items()}
