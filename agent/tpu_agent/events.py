"""What the agent reports: one entry in the stack's log for each event, and the cost ceiling.

Cloud Monitoring delivers the entries by the notification channels that the stack declares.
https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tpu_core.bucket import Bucket
from tpu_core.contract import Ceiling as Limit
from tpu_core.contract import Messages, Metadata
from tpu_core.google import Call, message
from tpu_core.paths import COST
from tpu_core.records import Unreadable, dump, sound

Event = Literal["cost", "endpoint", "job", "limits", "recovery", "training"]
_LOGS = "https://logging.googleapis.com/v2/entries:write"
# The longest value of a label that a notification can use; the log has the whole text.
_LONGEST_SUBJECT = 200
# A killed agent loses less than this.
_ADDITION_SECONDS = 600.0
# After a longer gap it is unknown what was running.
_LONGEST_GAP_SECONDS = 2 * _ADDITION_SECONDS


class Events:
    """The stack's log, as the metadata names it at the time of each event.

    Args:
        attribute: returns a metadata value of the machine, or None.
        call: calls Google as the machine's account.
        say: writes a line to the journal.
    """

    def __init__(
        self, attribute: Callable[[str], str | None], call: Call, say: Callable[[str], None]
    ) -> None:
        self._attribute, self._call, self._say = attribute, call, say

    @property
    def settings(self) -> Messages:
        """What the stack wants reported. Raises OSError or ValueError."""
        settings: Messages = json.loads(self._attribute(Metadata.MESSAGES) or "{}")
        return settings

    def report(self, event: Event, text: str) -> None:
        """Write an entry, if the stack has a log for them. It never fails."""
        try:
            if log := self.settings.get("log"):
                self._write(log, event, text)
        except Exception as error:  # Whatever it is: an entry is not worth an agent.
            self._say(f"an event could not be logged: {error}")

    def _write(self, log: str, event: Event, text: str) -> None:
        entry = {
            "logName": log,
            "resource": {"type": "global", "labels": {"project_id": log.split("/")[1]}},
            "severity": "NOTICE",
            "jsonPayload": {
                "event": event,
                "subject": text.partition("\n")[0][:_LONGEST_SUBJECT],
                "text": text,
            },
        }
        status, answer = self._call("POST", _LOGS, json.dumps({"entries": [entry]}))
        if status != 200:
            raise OSError(f"HTTP status {status} for {log}: {message(answer)}")


@dataclass
class _Spent:
    """What a month has cost so far, and the ceiling that was reported."""

    month: str
    at: float
    dollars: float = 0.0
    told: float | None = None


class Ceiling:
    """Reports once a month that the TPU and its VM have cost a certain sum.

    The sum uses the hourly prices of the stack's catalog, not Google's bill. It is kept in the
    bucket, so that another machine continues it.

    Args:
        bucket: where the sum is kept.
        stands: whether a TPU is READY now. Raises OSError.
        now: seconds since the epoch.
        tell: reports it; it never fails.
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

    def look(self, cost: Limit) -> None:
        """Add what was spent since the last look, if it is time to. Raises OSError."""
        now = self._now()
        if now < self._next:
            return
        self._next = now + _ADDITION_SECONDS
        spent = self._spent(now)
        price = cost["hour"] if self._stands() else cost["hourWithoutTpu"]
        spent.dollars += price * min(max(now - spent.at, 0.0), _LONGEST_GAP_SECONDS) / 3600
        spent.at = now
        reached = spent.dollars >= cost["dollars"] and spent.told != cost["dollars"]
        if reached:
            spent.told = cost["dollars"]
        self._bucket.write(COST, dump(spent))
        if reached:
            self._tell(
                f"cost ceiling reached: TPU and VM have cost ${spent.dollars:.2f} this month by "
                f"the catalog's prices; messages.costDollars is ${cost['dollars']:g}. Nothing is "
                "stopped"
            )

    def _spent(self, now: float) -> _Spent:
        new = _Spent(time.strftime("%Y-%m", time.gmtime(now)), now)
        found, _ = self._bucket.read_json(COST)
        try:
            spent = new if found is None else sound(_Spent, found)
        except Unreadable as error:
            self._bucket.set_aside(COST, now, str(error))
            return new
        return spent if spent.month == new.month else replace(new, at=spent.at)
