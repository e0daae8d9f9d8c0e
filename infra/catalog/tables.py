"""The catalog's files, each parsed at most once: a command makes several catalogs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

# The C loaders are some ten times as fast; wheels of PyYAML for a few platforms come without them.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@cache
def read(path: Path) -> Any:
    """Return the document in a file, which nobody may change."""
    return yaml.load(path.read_text("utf-8"), Loader=_LOADER)


@cache
def read_texts(path: Path) -> Any:
    """Return the document in a file with every number as the text that stands there."""
    return yaml.load(path.read_text("utf-8"), Loader=_TEXTS)
