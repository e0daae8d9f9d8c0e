"""A state in a folder: what a killed engine leaves of the files that it was writing."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

_READ_AT_ONCE = ("stacks", "locks")


def mend(url: str) -> list[Path]:
    """Remove files of attributes that were cut off; the answer is those.

    Beside each file the engine keeps one with its hash, which it does not write in one go. It does
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
