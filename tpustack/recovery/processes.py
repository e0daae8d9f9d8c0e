"""The processes of this machine."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import psutil

CLOCK = timedelta(seconds=5)
"""How wrong `started` may be: the age is known from the machine's boot, which moves when somebody
sets the clock."""


def started(pid: int) -> datetime | None:
    """Return when a process began; None if there is none of this number that lives.

    One that was killed stays until its parent asks how it ended: in a container perhaps for ever.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return datetime.fromtimestamp(process.create_time(), timezone.utc)
    except psutil.Error:
        return None
