"""Keeps what is secret out of the folder that a stack uploads to its bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

# `google-github-actions/auth` and `gcloud auth application-default login` write these.
_NAMES = ("gha-creds-*.json", "application_default_credentials.json")
# The kinds of credentials that google-auth reads (google/auth/_default.py).
_KINDS = frozenset(
    {
        "authorized_user",
        "external_account",
        "external_account_authorized_user",
        "gdch_service_account",
        "impersonated_service_account",
        "service_account",
    }
)
# A service account's key has 2,400 bytes.
_LONGEST = 100_000
_PEM, _PRIVATE = b"-----BEGIN ", b"PRIVATE KEY-----"


def is_around(folder: Path, root: Path) -> bool:
    """Return whether a folder is the project's root, or above it."""
    return root.resolve().is_relative_to(folder.resolve())


def refused(folder: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield why files must not be uploaded, a text each."""
    inside = folder.resolve()
    for path in files:
        name = path.relative_to(folder).as_posix()
        if not path.resolve().is_relative_to(inside):
            yield f"has {name}, a link to a file outside of it"
        elif _is_secret(path):
            yield f"has {name}, which holds credentials"


def _is_secret(path: Path) -> bool:
    if any(fnmatchcase(path.name.lower(), name) for name in _NAMES):
        return True
    try:
        with path.open("rb") as file:
            begin = file.read(len(_PEM))
            if begin == _PEM:
                return _PRIVATE in file.readline(_LONGEST)
        is_json = path.suffix.lower() == ".json" and path.stat().st_size < _LONGEST
        return is_json and _is_key(path)
    except OSError:
        # The upload itself says what is wrong with it.
        return False


def _is_key(path: Path) -> bool:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and str(found.get("type")) in _KINDS
