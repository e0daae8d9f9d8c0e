"""What the agent reports: one entry in the stack's log for each event.

Cloud Monitoring delivers the entries by the notification channels that the stack declares.
https://cloud.google.com/logging/docs/reference/v2/rest/v2/entries/write
"""

import json
from collections.abc import Callable
from typing import Literal

from tpu_core.contract import Messages, Metadata
from tpu_core.google import Call, message

Event = Literal["endpoint", "job", "limits", "recovery", "training"]
_LOGS = "https://logging.googleapis.com/v2/entries:write"
# The longest value of a label that a notification can use; the log has the whole text.
_LONGEST_SUBJECT = 200


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
