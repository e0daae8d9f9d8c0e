"""The data files of the local cloud: what Google offers, and how long it takes."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent


@cache
def load(name: str) -> Any:
    """Read `data/NAME.yaml`, once; callers must not change what they get."""
    return yaml.safe_load((_FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
