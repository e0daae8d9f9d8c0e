"""Leaves the checkout as it was: the engine writes a salt into a stack file that has none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from infra.settings.parse import load_yaml

# What the engine notes there about its secrets provider; each state has its own copy.
_ENGINES = ("encryptionsalt", "encryptedkey")


@contextmanager
def as_it_was(root: Path) -> Iterator[None]:
    """Take out of the stack files what the engine writes into them within the block.

    A file that somebody else has changed meanwhile stays.
    """
    before = {path: path.read_bytes() for path in (root / "stacks").glob("Pulumi.*.yaml")}
    try:
        yield
    finally:
        for path, content in before.items():
            if path.exists() and path.read_bytes() != content:
                _put_back(path, content)


def _put_back(path: Path, content: bytes) -> None:
    then, now = _document(content), _document(path.read_bytes())
    if then is None or now is None:
        return
    if {key: value for key, value in now.items() if key in then or key not in _ENGINES} == then:
        path.write_bytes(content)


def _document(content: bytes) -> dict[str, Any] | None:
    try:
        document = load_yaml(content.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None
