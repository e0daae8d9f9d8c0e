"""What the real Google Cloud answered: files of `tpustack prove` that a review has accepted.

A proof is a file in the catalog's folder `proofs`, as the command wrote it. What it found true is
no longer unverified. The digest shows an edit by mistake, not a forgery: anyone can compute it.
A proof counts because people reviewed the request that added it.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tpu_core.words import duration, money

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


# --- What `tpustack prove` writes: evidence without names, and a text for an issue

ANSWERS: Final = {True: "true", False: "false", None: "not answered"}
_LONGEST = 2000
_PRIVATE = (
    (r'("startup-script"(?:: *|,\s*"value": *))"(\\.|[^"\\])*"', r'\1"…"'),
    (r"[\w.+-]+@[\w.-]+\w", "EMAIL"),
    (r"\bprojects/[^-/\"'\s:?][^/\"'\s:?]*", "projects/PROJECT"),
    # "not been used in project 1 before", "consumer 'project_number:1'", "projectNumber": "1"
    (r"\b((?i:project([_ ]?number)?)[\": =]+)\d+", r"\1PROJECT"),
    (r"\bya29\.[\w.-]+", "TOKEN"),
    (r"\b\d{1,3}(\.\d{1,3}){3}\b", "ADDRESS"),
)


def redacted(value: Any, project: str) -> Any:
    """Return JSON without names of the project and people, addresses, tokens and long texts."""
    if isinstance(value, dict):
        return {key: redacted(each, project) for key, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, project) for each in value]
    if not isinstance(value, str):
        return value
    for pattern, instead in ((rf"(?<![\w-]){re.escape(project)}(?![\w-])", "PROJECT"), *_PRIVATE):
        value = re.sub(pattern, instead, value)
    return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}… ({len(value)} characters)"


def issue(document: Mapping[str, Any]) -> str:
    """Return a proof's document as Markdown to paste into an issue."""
    versions = ", ".join(f"{name} {each}" for name, each in document["versions"].items())
    cost = document["cost"]
    rows = (
        f"| {one['says']} | {ANSWERS[one['answer']]} | {one['why'].replace('|', '/')} |"
        for one in document["claims"]
    )
    head = (
        f"Proof on Google Cloud, {document['date']}: spot {document['acceleratorType']} in "
        f"{document['zone']} with {document['runtimeVersion']}; {versions}; "
        f"{duration(cost['seconds'])}, {money(Decimal(cost['dollars']))}."
    )
    return "\n".join((head, "", "| claim | answer | why |", "|---|---|---|", *rows))
