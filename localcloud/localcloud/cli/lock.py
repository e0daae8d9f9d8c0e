"""A lock on the home folder: one emulator at a time, however the last one ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

from localcloud.cli.client import CommandError


def take(home: Path) -> IO[str]:
    """Hold the home's lock until the file is closed or the process ends.

    Raises:
        CommandError: when another emulator holds it.
    """
    file = _try(home)
    if file is None:
        raise CommandError(f"another local cloud runs on {home}")
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def holder(home: Path) -> int | None:
    """Return the process id of the emulator that runs on `home`, even if it hangs."""
    path = home / "lock"
    if not path.exists():
        return None
    file = _try(home)
    if file is not None:
        file.close()
        return None
    with contextlib.suppress(ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def _try(home: Path) -> IO[str] | None:
    file = (home / "lock").open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
