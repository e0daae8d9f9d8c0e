"""Times as Google and the engine write them."""

from __future__ import annotations

import re
from datetime import datetime

# Python 3.10 reads no fractions of nanoseconds, and no Z.
_FRACTION = re.compile(r"\.\d+")


def read(text: str) -> datetime:
    """Parse a time with its zone, to the second. Raises ValueError."""
    return datetime.fromisoformat(_FRACTION.sub("", text).replace("Z", "+00:00"))
