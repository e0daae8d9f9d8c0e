"""What is to be compiled, and the name under which its answer is kept. Loads no TensorFlow."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_training.compile.versions import sources_digest, versions
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

    def changed(self, given: Mapping[str, Any]) -> "Request":
        """Return the request with other values of some parameters."""
        return dataclasses.replace(self, given={**self.given, **given})

    def without(self, *names: str) -> "Request":
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
