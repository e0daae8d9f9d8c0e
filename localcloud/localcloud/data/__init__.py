"""The data files of the local cloud: what Google offers, and how long it takes."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent
# Some ten times as fast; wheels of PyYAML for a few platforms come without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def load(name: str) -> Any:
    """Read `data/NAME.yaml`, once; callers must not change what they get."""
    text = (_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)
