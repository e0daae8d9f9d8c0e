"""What is to be compiled: its data, and the key under which the cache keeps the answer.

Loads TensorFlow only to read a manifest from gs://.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tpu_training import __version__
from tpu_training.data.manifest import (
    FILE_NAME,
    RAW,
    TOKENS,
    Manifest,
    Split,
    parse_manifest,
    stored_spec,
)
from tpu_training.errors import DataError, InputError
from tpu_training.models.spec import DataSpec

# Parameters that no compiled step depends on, but for numbers in it.
_WITHOUT_EFFECT = {
    "cache",
    "checkpoint_interval",
    "connect_interval",
    "connect_tries",
    "data_service",
    "epochs",
    "evaluation_interval",
    "hang_timeout",
    "keep_checkpoints",
    "learning_rate",
    "local_devices",
    "order",
    "patience",
    "profile_steps",
    "seed",
    "skip_corrupt_records",
    "snapshot_interval",
    "steps_per_loop",
    "validation_fraction",
    "warmup_fraction",
}


@dataclass(frozen=True)
class Request:
    """A job's step, or a program in a file, as far as it decides what is compiled.

    Attributes:
        model: The model's name, or the path of a user's file, or of a program.
        source: The content of that file; empty for a built-in model.
        given: The parameters that the user gave; the others are the model's defaults.
        spec: The data; None for a program in a file.
    """

    model: str
    source: bytes
    given: Mapping[str, Any]
    spec: DataSpec | None

    def changed(self, given: Mapping[str, Any]) -> Request:
        """Return the request with other values of some parameters."""
        return dataclasses.replace(self, given={**self.given, **given})

    def without(self, *names: str) -> Request:
        """Return the request without some of the given parameters."""
        left = {name: value for name, value in self.given.items() if name not in names}
        return dataclasses.replace(self, given=left)

    def key(self, tpu: str, **more: object) -> str:
        """Return a name for what `tpu` and `more` make of it, the same in every process."""
        given = {name: _plain(value) for name, value in self.given.items()}
        content = {
            "model": hashlib.sha256(self.source).hexdigest() if self.source else self.model,
            "given": {name: given[name] for name in given if name not in _WITHOUT_EFFECT},
            "spec": self.spec and dataclasses.asdict(self.spec),
            "versions": versions(),
            "sources": sources_digest(),
            "tpu": tpu,
            "more": more,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def request(model: str, given: Mapping[str, Any], spec: DataSpec) -> Request:
    """Return the request for a model's step; reads a user's file, but doesn't run it."""
    source = Path(model).read_bytes() if model.endswith(".py") else b""
    names = {str(name).replace("-", "_"): value for name, value in given.items()}
    return Request(model, source, names, spec)


def _plain(value: object) -> str:
    """Return one text for a value that stands as text or number: 64, 64.0, "64"."""
    try:
        return repr(float(str(value)))
    except ValueError:
        return str(value)


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of the data set in `directory`; its files need not be there.

    Loads TensorFlow for a gs:// URL only.

    Raises:
        DataError: It is missing or damaged.
    """
    path = f"{directory.rstrip('/')}/{FILE_NAME}"
    if directory.startswith("gs://"):
        from tpu_training.data import files

        text = files.read_text(path)
    else:
        local = Path(path)
        text = local.read_text(encoding="utf-8") if local.is_file() else None
    if text is None:
        raise DataError(
            f"--data={directory}: contains no {FILE_NAME}; write the data set with `tpu-training "
            "data convert`, or describe the data with --shape and --classes"
        )
    return parse_manifest(text, path)


_IMAGE = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")
_TEXT = re.compile(r"[1-9]\d*")


def described_data(shape: str, classes: int, vocabulary: int = 0) -> Manifest:
    """Return the manifest of a data set without files, which `--shape` and its kin describe.

    Args:
        shape: HEIGHTxWIDTHxCHANNELS of an image, or the number of a text's tokens.
        classes: The number of classes.
        vocabulary: The number of tokens in the vocabulary of a text; 0 for images.

    Raises:
        InputError: With every problem at once.
    """
    text, image = bool(_TEXT.fullmatch(shape)), bool(_IMAGE.fullmatch(shape))
    problems = []
    if not text and not image:
        problems.append(
            f"--shape={shape}: expected HEIGHTxWIDTHxCHANNELS of an image, such as 224x224x3, or "
            "the number of a text's tokens, such as 512"
        )
    if classes < 1:
        problems.append(f"--classes={classes}: must be at least 1")
    if text and vocabulary < 1:
        problems.append(
            f"--vocabulary={vocabulary}: a text of --shape={shape} tokens needs the size of its "
            "vocabulary, such as --vocabulary=30522"
        )
    if image and vocabulary:
        problems.append(f"--vocabulary={vocabulary}: images of --shape={shape} have none; omit it")
    if problems:
        raise InputError("; ".join(problems))
    sizes = tuple(int(size) for size in shape.split("x"))
    spec = stored_spec(TOKENS if text else RAW, sizes, classes, vocabulary)
    splits = {name: Split(0, ()) for name in ("train", "test")}
    return Manifest(f"--shape={shape}", spec, TOKENS if text else RAW, splits)


_TENSORFLOW = ("tensorflow-cpu", "tensorflow-tpu", "tensorflow", "tf-nightly")
_LIBTPU = ("libtpu", "libtpu-nightly")
_PACKAGE = Path(__file__).parents[1]
# The parts of this package that a compiled program depends on.
_SOURCES = ("models", "tasks", "loop", "compile")


def versions() -> dict[str, str | None]:
    """Return the versions of this package, TensorFlow and libtpu; None for what is missing."""
    return {
        "tpu-stack-training": __version__,
        "tensorflow": _first(_TENSORFLOW),
        "libtpu": _first(_LIBTPU),
    }


@cache
def sources_digest() -> str:
    """Return a digest of this package's sources: a working copy changes without a new version."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _first(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
