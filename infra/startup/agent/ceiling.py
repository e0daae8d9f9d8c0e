"""Say once a month that the TPU and its machine have cost as much as somebody wanted to be told.

It is what they cost by the hour in the stack's catalog of prices, added up minute by minute, and
not what Google bills. The sum lies in the bucket, so that another machine goes on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from .google import Bucket, Json
from .versioned import Unreadable, dump, sound

_PATH = "agent/cost.json"
# Between two additions; a kill of the agent loses less.
_EACH = 600.0
# Longer than this nobody was here to see what stood meanwhile.
_MOST = 2 * _EACH


@dataclass
class _Spent:
    """What a month has cost until a moment, and the ceiling that was told."""

    month: str
    at: float
    dollars: float = 0.0
    told: float | None = None


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
        spent = self._spent(now)
        price = cost["hour"] if self._stands() else cost["hourWithoutTpu"]
        spent.dollars += price * min(max(now - spent.at, 0.0), _MOST) / 3600
        spent.at = now
        reached = spent.dollars >= cost["dollars"] and spent.told != cost["dollars"]
        if reached:
            spent.told = cost["dollars"]
        self._bucket.write(_PATH, dump(spent).decode())
        if reached:
            self._tell(_text(spent.dollars, cost["dollars"]))

    def _spent(self, now: float) -> _Spent:
        new = _Spent(time.strftime("%Y-%m", time.gmtime(now)), now)
        found = self._bucket.read(_PATH)
        try:
            spent = new if found is None else sound(_Spent, found)
        except Unreadable as error:
            self._bucket.put_aside(_PATH, now, str(error))
            return new
        return spent if spent.month == new.month else replace(new, at=spent.at)


def _text(spent: float, ceiling: float) -> str:
    return (
        f"cost ceiling reached: TPU and VM have cost ${spent:.2f} this month by the catalog's "
        f"prices; messages.costDollars is ${ceiling:g}. Nothing is stopped"
    )
