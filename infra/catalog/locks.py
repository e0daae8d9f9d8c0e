"""Locks of what the start-up scripts install: pip takes only wheels with these hashes."""

from __future__ import annotations

from pathlib import Path

LOCKS = Path(__file__).parent.parent / "startup" / "locks"
"""One file per release, PACKAGE-VERSION.txt, written by tools/lock_machines.py."""


def lock_of(package: str, version: str) -> str | None:
    """Return the requirements of a release with the hashes of their wheels, if they are known."""
    path = LOCKS / f"{package}-{version}.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else None
