"""What the real Google Cloud answered: files of `tpustack prove` that a review has accepted.

A proof is a file in the catalog's folder `proofs`, as the command wrote it. What it found true is
no longer unverified. The digest shows an edit by mistake, not a forgery: anyone can compute it.
A proof counts because people reviewed the request that added it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CREATED: Final = "spot-tpu"
"""The claim that Google creates a spot TPU VM with the proof's runtime."""


@dataclass(frozen=True)
class Proofs:
    """What the proofs in a folder found together.

    Attributes:
        runtimes: names of runtimes with which Google created a TPU VM.
        refused: why a file is not believed, by its path in the folder.
    """

    runtimes: frozenset[str]
    refused: Mapping[str, str]


def read(folder: Path) -> Proofs:
    """Return what the proofs in a folder found; one that is damaged or edited is refused."""
    runtimes: set[str] = set()
    refused: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            document = json.loads(path.read_text("utf-8"))
            answers = {claim["claim"]: claim["answer"] for claim in document["claims"]}
            runtime = document["runtimeVersion"]
            if document["digest"] != digest(document):
                refused[path.name] = "was edited after the proof"
            elif answers.get(CREATED) is True:
                runtimes.add(runtime)
        except (ValueError, KeyError, TypeError):
            refused[path.name] = "is not what `tpustack prove` writes"
    return Proofs(frozenset(runtimes), refused)


def digest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a proof without its own `digest`, in any order of its keys."""
    rest = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
