"""Take the TPU down when its time is up, or when nothing has trained for too long."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .google import (
    STORAGE,
    TPU,
    Bucket,
    Call,
    Json,
    Place,
    is_queued,
    look_up,
    message,
    seconds,
    short_name,
    state_of,
    timestamp,
    version,
)
from .jobs.layout import IDLE_STOP


class LimitEnforcer:
    """Look at the TPUs, one round at a time.

    Args:
        place: where they are.
        call: calls Google as the machine's account.
        training: whether the trainer runs on this machine now.
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        tell: tells people elsewhere, and never fails.
        sleep: is called before what nothing runs on is deleted. Raises OSError.
    """

    def __init__(
        self,
        place: Place,
        call: Call,
        training: Callable[[], bool],
        now: Callable[[], float],
        say: Callable[[str], None],
        tell: Callable[[str], None] = lambda text: None,
        sleep: Callable[[], None] = lambda: None,
    ) -> None:
        self._tell, self._sleep = tell, sleep
        self._place, self._call, self._training = place, call, training
        self._now, self._say = now, say
        self._bucket = Bucket(call, place.bucket)
        self._busy = now()
        self._asked: Json | None = None

    def look(self, limits: Mapping[str, Any]) -> bool:
        """Do one round. Return True once a TPU was deleted because its time was up."""
        nodes = [node for name in limits["tpus"] if (node := self._node(name)) is not None]
        # What is being made, preempted or stopped is not idle; it counts from READY on.
        busy = self._training() or not any(state_of(node) == "READY" for node in nodes)
        if busy:
            self._busy, self._asked = self._now(), None
        over = [node for node in nodes if self._is_over(node, limits.get("timeToLiveHours"))]
        if over:
            self._delete(over, f"its {limits['timeToLiveHours']:g} hours are over")
        elif not busy and self._is_idle(minutes := self._idle_minutes(limits)):
            why = f"nothing has trained for {minutes:g} minutes"
            ready = [node for node in nodes if state_of(node) == "READY"]
            stays = [node for node in ready if _can_be_stopped(node)]
            for node in stays:
                self._stop(node, why)
            if gone := [node for node in ready if node not in stays]:
                self._sleep()
                self._delete(gone, why)
            self._busy = self._now()
        return bool(over)

    def wake(self, limits: Mapping[str, Any]) -> bool:
        """Start TPUs that were stopped: there is something to train. Return True when done."""
        for name in limits["tpus"]:
            node = self._node(name)
            if node is not None and state_of(node) == "STOPPED":
                self._say(f"starting {name}, which was stopped")
                self._act("POST", f"{version(node)}/{node['name']}:start", "{}")
        return True

    def _node(self, name: str) -> Json | None:
        _, status, node = look_up(self._place, self._call, name)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {name}: {message(node)}")
        return node if status == 200 else None

    def _is_over(self, node: Json, hours: float | None) -> bool:
        made = node.get("createTime")
        if hours is None or not made or state_of(node) in ("CREATING", "DELETING"):
            return False
        return self._now() >= seconds(made) + hours * 3600

    def _idle_minutes(self, limits: Mapping[str, Any]) -> float | None:
        """Return the shorter one of what the stack says and what the last job was sent with."""
        if self._asked is None:
            # Whoever asks for another time sends a job along.
            self._asked = self._bucket.read(IDLE_STOP) or {}
        asked = self._asked.get("minutes")
        # Whoever may submit jobs may write that object; the stack's own limit was checked.
        sound = isinstance(asked, int | float) and asked >= 1
        found = (limits.get("idleMinutes"), asked if sound else None)
        return min((minutes for minutes in found if minutes is not None), default=None)

    def _is_idle(self, minutes: float | None) -> bool:
        if minutes is None or self._now() < self._busy + minutes * 60:
            return False
        # Whoever trains without this machine's unit leaves traces in the bucket.
        self._busy = max([self._busy, *self._traces()])
        return self._now() >= self._busy + minutes * 60

    def _traces(self) -> Iterator[float]:
        """Yield when each object of a job was written."""
        address = f"{STORAGE}storage/v1/b/{urllib.parse.quote(self._place.bucket)}/o"
        query = {"prefix": "jobs/", "fields": "items(name,updated),nextPageToken"}
        while True:
            status, page = self._call("GET", f"{address}?{urllib.parse.urlencode(query)}", None)
            if status != 200:
                raise OSError(f"HTTP status {status} for {address}: {message(page)}")
            for found in page.get("items", []):
                # The agent's own ledger is no trace of a trainer.
                if "/ledger/tpus-" not in found["name"]:
                    yield seconds(found["updated"])
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _stop(self, node: Json, why: str) -> None:
        self._note(node, "stopped", why)
        self._act("POST", f"{version(node)}/{node['name']}:stop", "{}")

    def _delete(self, nodes: list[Json], why: str) -> None:
        for node in nodes:
            self._note(node, "deleted", why)
        # What came out of the queue goes with its request, which may have asked for several.
        for queued in sorted({node["queuedResource"] for node in nodes if is_queued(node)}):
            self._act("DELETE", f"v2/{queued}?force=true", None)
        for node in nodes:
            if not is_queued(node):
                self._act("DELETE", f"{version(node)}/{node['name']}", None)

    def _act(self, method: str, path: str, body: str | None) -> None:
        status, answer = self._call(method, TPU + path, body)
        if status >= 300:
            raise OSError(f"HTTP status {status} for {method} {path}: {message(answer)}")

    def _note(self, node: Json, what: str, why: str) -> None:
        """Say it before it is done: what is deleted may be this machine itself."""
        text = f"{short_name(node)} is {what}: {why}"
        self._say(text)
        path = f"limits/{timestamp(self._now())}-{short_name(node)}.txt"
        try:
            self._bucket.write(path, f"{timestamp(self._now())} {text}\n")
        except OSError as error:
            self._say(f"cannot write {path}: {error}")
        self._tell(text)


def _can_be_stopped(node: Json) -> bool:
    return len(node.get("networkEndpoints", [])) == 1 and not is_queued(node)
