"""What the agent remembers in the bucket, so that it can be killed at any point."""

from __future__ import annotations

import json
from collections.abc import Callable

from .google import Bucket, Json, timestamp

_PATH = "agent/state.json"
_DAY = 86400.0
_KEPT_EVENTS = 1000


class Memory:
    """The TPUs that are being made anew, and what has happened.

    It is written before each step, and each step can be repeated. Garbage is kept aside.
    """

    def __init__(
        self, bucket: Bucket, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._bucket, self._now, self._say = bucket, now, say
        self._content: Json | None = None

    @property
    def remaking(self) -> dict[str, Json]:
        """Return, by the name of each TPU that is being made anew, what is known of it."""
        found: dict[str, Json] = self._load()["remaking"]
        return found

    def today(self, kind: str) -> int:
        """Return how many events of a kind, `preemption` or `failure`, the last day has seen."""
        begin = self._now() - _DAY
        return sum(
            1 for event in self._load()["events"] if event["kind"] == kind and event["at"] > begin
        )

    def add(self, kind: str, name: str, cause: str) -> None:
        """Add an event; `save` keeps it."""
        event = {"at": self._now(), "kind": kind, "tpu": name, "cause": cause}
        content = self._load()
        content["events"] = [*content["events"], event][-_KEPT_EVENTS:]

    def save(self) -> None:
        """Write everything. Raises OSError, after which it is read again."""
        content, self._content = self._load(), None
        self._bucket.write(_PATH, json.dumps(content, indent=1) + "\n")
        self._content = content

    def _load(self) -> Json:
        if self._content is None:
            found = self._bucket.read(_PATH)
            if found is not None and not _is_sound(found):
                aside = f"agent/state-{timestamp(self._now())}.garbage"
                self._bucket.copy(_PATH, aside)
                self._say(f"{_PATH} is garbage; it is kept as {aside}")
                found = None
            self._content = found or {"remaking": {}, "events": []}
        return self._content


def _is_sound(content: Json) -> bool:
    remaking, events = content.get("remaking"), content.get("events")
    return (
        isinstance(remaking, dict)
        and all(isinstance(entry, dict) and entry.keys() >= _KNOWN for entry in remaking.values())
        and isinstance(events, list)
        and all(isinstance(event, dict) and {"at", "kind"} <= event.keys() for event in events)
    )


_KNOWN = {"since", "cause", "created", "labels", "declared", "operation", "tries", "notBefore"}
"""The fields of a TPU that is being made anew."""
