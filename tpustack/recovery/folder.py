"""Repairs a backend in a folder, where a killed engine leaves files half written."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

_READ_AT_ONCE = ("stacks", "locks")


def mend(url: str) -> list[Path]:
    """Remove attribute files that were cut off; return their paths.

    Beside each file the engine keeps one with its hash, and does not write it in one go. It works
    without, but an empty one makes every command fail with "EOF". Buckets have no such files.
    """
    if not url.startswith("file://"):
        return []
    state = Path(urlsplit(url).path) / ".pulumi"
    files = [path for name in _READ_AT_ONCE for path in (state / name).rglob("*.attrs")]
    cut_off = [path for path in files if not _is_whole(path)]
    for path in cut_off:
        path.unlink(missing_ok=True)
    return cut_off


def _is_whole(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True
