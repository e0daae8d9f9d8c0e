"""TODO."""

from __future__ import annotations

from datetime import datetime, timezone


def seconds(timestamp: str) -> float:
    """Return the seconds since the epoch of a time as Google writes it."""
    # Python 3.10 reads neither Z nor the nanoseconds that Google writes.
    moment = datetime.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()


def timestamp(now: float) -> str:
    """Return a time in the way that sorts."""
    return f"{datetime.fromtimestamp(now, tz=timezone.utc):%Y%m%dT%H%M%SZ}"
