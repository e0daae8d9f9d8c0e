"""What the stack declares of its TPUs, as `pulumi up` wrote it to the bucket."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from infra.startup.agent.tpunames import in_zone, labels_of
from tpu_core.contract import MARK
from tpu_core.paths import DECLARATION

from .google import Bucket, Json
from .versioned import FORMAT


@dataclass(frozen=True)
class Declaration:
    """The body of the API's call that creates each TPU, or the request for all of them, by name."""

    tpus: dict[str, Json]

    def digest(self, name: str) -> str:
        """Return what changes with what is declared of a TPU."""
        text = json.dumps(self.tpus[name], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def owns(self, name: str, labels: Json) -> bool:
        """Return whether what is there, with these labels, is this stack's, by its mark."""
        mark = labels_of(self.tpus[name]).get(MARK)
        return bool(mark) and labels.get(MARK) == mark


def read_declaration(bucket: Bucket) -> Declaration | None:
    """Return what the stack declares; None if it is missing or damaged. Raises OSError."""
    content = bucket.read(DECLARATION)
    tpus = content.get("tpus") if content and content.get("format", FORMAT) == FORMAT else None
    if not isinstance(tpus, dict) or not all(map(_is_sound, tpus.values())):
        return None
    return Declaration(tpus)


def _is_sound(body: object) -> bool:
    try:
        if not isinstance(body, dict):
            return False
        if "tpu" in body:
            in_zone(body, "")
        return isinstance(labels_of(body), dict)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
