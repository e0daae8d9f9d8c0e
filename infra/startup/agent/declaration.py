"""What the stack declares of its TPUs, as `pulumi up` wrote it to the bucket."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from .google import Bucket, Json

PATH = "agent/declaration.json"
MARK = "tpu-stack-mark"


@dataclass(frozen=True)
class Declaration:
    """The body of the API's call that creates each TPU, by name."""

    tpus: dict[str, Json]

    def digest(self, name: str) -> str:
        """Return what changes with what is declared of a TPU."""
        text = json.dumps(self.tpus[name], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def owns(self, name: str, node: Json) -> bool:
        """Return whether a TPU that is there is this stack's, by its mark."""
        mark = self.tpus[name].get("labels", {}).get(MARK)
        return bool(mark) and node.get("labels", {}).get(MARK) == mark


def read_declaration(bucket: Bucket) -> Declaration | None:
    """Return what the stack declares; None if it is missing or damaged. Raises OSError."""
    content = bucket.read(PATH)
    tpus = content.get("tpus") if content else None
    if not isinstance(tpus, dict) or not all(isinstance(body, dict) for body in tpus.values()):
        return None
    return Declaration(tpus)
