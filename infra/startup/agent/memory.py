"""What the agent remembers in the bucket, so that it can be killed at any point."""

from __future__ import annotations

import json
from collections.abc import Callable

from .forms import Seen
from .google import Bucket, Json, timestamp
from .jobs.layout import WANTED

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
        # What lies in the future was written by a clock that was wrong.
        end, events = self._now(), self._load()["events"]
        return sum(e["kind"] == kind and end - _DAY < e["at"] <= end for e in events)

    def add(self, kind: str, name: str, cause: str) -> None:
        """Add an event; `save` keeps it."""
        event = {"at": self._now(), "kind": kind, "tpu": name, "cause": cause}
        content = self._load()
        content["events"] = [*content["events"], event][-_KEPT_EVENTS:]

    def entry(self, seen: Seen, declared: str, why: str) -> Json:
        """Return what is to be known of a TPU that is there now, and is to be made anew.

        `declared` is the digest of what the stack declares of it.
        """
        return {
            "since": self._now(),
            "cause": why,
            "created": seen.created,
            "labels": seen.labels,
            "declared": declared,
            "operation": None,
            "tries": 0,
            "notBefore": 0.0,
            "zone": seen.zone,
        }

    def sleep(self, name: str, seen: Seen, declared: str) -> None:
        """Note what a limit deletes next; `save` keeps it."""
        entry = self.entry(seen, declared, "nothing ran on it")
        self.remaking[name] = {**entry, "asleep": self._now()}

    def wakes(self, entry: Json) -> bool:
        """Return whether a job has wanted a TPU since a limit deleted it, and note that it has.

        Raises:
            OSError: if the bucket does not answer.
        """
        wanted = (self._bucket.read(WANTED) or {}).get("at")
        if not isinstance(wanted, int | float) or wanted <= entry["asleep"]:
            return False
        del entry["asleep"]
        entry["since"] = self._now()
        self.save()
        return True

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
        and all(_is_known(entry) for entry in remaking.values())
        and isinstance(events, list)
        and all(isinstance(e, dict) and "kind" in e and _is_number(e.get("at")) for e in events)
    )


def _is_known(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and entry.keys() >= _KNOWN
        and all(_is_number(entry.get(n, 0.0)) for n in ("since", "tries", "notBefore", "asleep"))
        and isinstance(entry["labels"], dict)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


_KNOWN = {"since", "cause", "created", "labels", "declared", "operation", "tries", "notBefore"}
"""The fields of a TPU that is being made anew."""
