"""Times as Google writes them, and how long to wait before another try."""

import random
import re
from collections.abc import Callable
from datetime import datetime, timezone


def seconds(timestamp: str) -> float:
    """Return the seconds since the epoch of an RFC 3339 time in UTC, without fractions.

    Raises ValueError.
    """
    # Python 3.10 reads neither Z nor the nanoseconds that Google writes.
    moment = datetime.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()


def in_utc(text: str) -> str:
    """Return a time as the TPU API writes it, which knows no other zone than UTC."""
    return f"{parse_time(text).astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


# Python 3.10 reads no fractions of nanoseconds, and no Z.
_FRACTION = re.compile(r"\.\d+")


def parse_time(text: str) -> datetime:
    """Parse a time with its zone, to the second. Raises ValueError.

    Compute Engine writes Pacific time (-07:00), the engine the machine's own.
    """
    return datetime.fromisoformat(_FRACTION.sub("", text).replace("Z", "+00:00"))


def timestamp(now: float) -> str:
    """Return a time for the name of an object: names sort like times."""
    return f"{datetime.fromtimestamp(now, tz=timezone.utc):%Y%m%dT%H%M%SZ}"


def backoff(
    tries: int, first: float, longest: float, chance: Callable[[], float] = random.random
) -> float:
    """Return the pause after so many failed tries, in seconds.

    It doubles with each try. Half of it is random, so that clients which failed together do not
    come back together.
    """
    # The exponent has a limit: some callers try for ever, and 2.0 ** 1024 is an OverflowError.
    pause = min(longest, first * 2.0 ** min(tries, 30))
    return pause * (0.5 + 0.5 * chance())
