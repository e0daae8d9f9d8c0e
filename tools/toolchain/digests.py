"""The digests that this repository pins: of what is downloaded, and of what CI may run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from toolchain.errors import ToolchainError
from toolchain.pins import TOOLS

FILE = TOOLS / "toolchain" / "digests.txt"
_CHUNK = 1 << 20


def pinned() -> Mapping[str, str]:
    """Return the digests by the names of their files."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: digest for digest, name in entries}


def pinned_of(archive: str) -> str:
    """Return the digest of an archive. Raises ToolchainError if the repository has none."""
    try:
        return pinned()[archive]
    except KeyError:
        raise ToolchainError(f"{FILE.name} has no digest of {archive}") from None


def may_run(program: Path) -> bool:
    """Tell whether a program that was found may be run: in CI, only one with a pinned digest.

    A runner's image has whatever engine its makers put there that week; who works on a machine has
    chosen the programs on it.
    """
    return not in_ci() or digest_of(program) in pinned().values()


def in_ci() -> bool:
    """Tell whether this is a job of a pipeline; GitHub and GitLab both say so."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
