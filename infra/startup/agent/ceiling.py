"""Say once a month that the TPU and its machine have cost as much as somebody wanted to be told.

It is what they cost by the hour in the stack's catalog of prices, added up minute by minute, and
not what Google bills. The sum lies in the bucket, so that another machine goes on with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from .google import FORMAT, Bucket, Json, is_number

_PATH = "agent/cost.json"
# Between two additions; a kill of the agent loses less.
_EACH = 600.0
# Longer than this nobody was here to see what stood meanwhile.
_MOST = 2 * _EACH


class Ceiling:
    """What has been spent this month.

    Args:
        bucket: where the sum lies.
        stands: whether a TPU stands now. Raises OSError.
        now: seconds since the epoch.
        tell: tells people; it never fails.
    """

    def __init__(
        self,
        bucket: Bucket,
        stands: Callable[[], bool],
        now: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self._bucket, self._stands, self._now, self._tell = bucket, stands, now, tell
        self._next = 0.0

    def look(self, cost: Json) -> None:
        """Add what has been spent since the last look, if it is time to. Raises OSError.

        Args:
            cost: `dollars`, the ceiling, and what an `hour` costs with a TPU and `hourWithoutTpu`.
        """
        now = self._now()
        if now < self._next:
            return
        self._next = now + _EACH
        seen = self._seen(now)
        price = cost["hour"] if self._stands() else cost["hourWithoutTpu"]
        seen["dollars"] += price * min(max(now - seen["at"], 0.0), _MOST) / 3600
        seen["at"] = now
        reached = seen["dollars"] >= cost["dollars"] and seen["told"] != cost["dollars"]
        if reached:
            seen["told"] = cost["dollars"]
        self._bucket.write(_PATH, json.dumps(seen) + "\n")
        if reached:
            self._tell(_text(seen["dollars"], cost["dollars"]))

    def _seen(self, now: float) -> dict[str, Any]:
        month = time.strftime("%Y-%m", time.gmtime(now))
        found = self._bucket.read(_PATH)
        new = {"format": FORMAT, "month": month, "dollars": 0.0, "at": now, "told": None}
        if found is None:
            return new
        sums = found.get("dollars"), found.get("at"), found.get("told") or 0.0
        if found.get("format") != FORMAT or not all(map(is_number, sums)):
            self._bucket.put_aside(_PATH, now, "it is no sum that this release reads")
            return new
        return {**new, **(found if found.get("month") == month else {"at": found["at"]})}


def _text(spent: float, ceiling: float) -> str:
    return (
        f"cost ceiling reached: TPU and VM have cost ${spent:.2f} this month by the catalog's "
        f"prices; messages.costDollars is ${ceiling:g}. Nothing is stopped"
    )
