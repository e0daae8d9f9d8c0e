"""Take the TPU down when its time is up, or when nothing has trained for too long.

The start-up script runs this program as the systemd unit `watchdog` on the machine that trains; it
is `watchdog.py` there. It needs Python 3.10 and nothing else, and acts as the machine's own
account. The metadata `limits` is a JSON object: `tpus` (names), `timeToLiveHours`, `idleMinutes`
(either may be missing) and `turnOff` (whether the machine goes off with a TPU whose time is up).
A change of it counts at once.

`python3 watchdog.py` enforces the limits; `python3 watchdog.py wake` starts TPUs that it stopped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

Json = dict[str, Any]
Call = Callable[[str, str, "str | None"], tuple[int, Json]]
"""(method, URL, text to send) -> (HTTP status, JSON object)."""

METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/"
TPU = "https://tpu.googleapis.com/"
STORAGE = "https://storage.googleapis.com/"
LOOK_SECONDS = 60
"""Between two looks."""


@dataclass(frozen=True)
class Place:
    """Where the TPUs and the traces of training are; `bucket` has no gs:// before its name."""

    project: str
    zone: str
    bucket: str

    def node(self, name: str) -> str:
        """Return the full name of a TPU."""
        return f"projects/{self.project}/locations/{self.zone}/nodes/{name}"


class LimitEnforcer:
    """Look at the TPUs, one round at a time.

    Args:
        place: where they are.
        call: calls Google as the machine's account.
        training: whether the trainer runs on this machine now.
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
    """

    def __init__(
        self,
        place: Place,
        call: Call,
        training: Callable[[], bool],
        now: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._place, self._call, self._training = place, call, training
        self._now, self._say = now, say
        self._busy = now()

    def look(self, limits: Mapping[str, Any]) -> bool:
        """Do one round. Return True once a TPU was deleted because its time was up."""
        nodes = [node for name in limits["tpus"] if (node := self._node(name)) is not None]
        if self._training() or not any(node["state"] == "READY" for node in nodes):
            # What is being made, preempted or stopped is not idle; it counts from READY on.
            self._busy = self._now()
        over = [node for node in nodes if self._is_over(node, limits.get("timeToLiveHours"))]
        if over:
            self._delete(over, f"its {limits['timeToLiveHours']:g} hours are over")
        elif self._is_idle(limits.get("idleMinutes")):
            why = f"nothing has trained for {limits['idleMinutes']:g} minutes"
            ready = [node for node in nodes if node["state"] == "READY"]
            stays = [node for node in ready if _can_be_stopped(node)]
            for node in stays:
                self._stop(node, why)
            self._delete([node for node in ready if node not in stays], why)
            self._busy = self._now()
        return bool(over)

    def wake(self, limits: Mapping[str, Any]) -> bool:
        """Start TPUs that were stopped: there is something to train. Return True when done."""
        for name in limits["tpus"]:
            node = self._node(name)
            if node is not None and node["state"] == "STOPPED":
                self._say(f"starting {name}, which was stopped")
                self._act("POST", f"{_version(node)}/{self._place.node(name)}:start", "{}")
        return True

    def _node(self, name: str) -> Json | None:
        status, node = self._call("GET", f"{TPU}v2/{self._place.node(name)}", None)
        if status not in (200, 404):
            raise OSError(f"HTTP status {status} for {name}: {_message(node)}")
        return node if status == 200 else None

    def _is_over(self, node: Json, hours: float | None) -> bool:
        if hours is None or node["state"] in ("CREATING", "DELETING"):
            return False
        return self._now() >= _seconds(node["createTime"]) + hours * 3600

    def _is_idle(self, minutes: float | None) -> bool:
        if minutes is None or self._now() < self._busy + minutes * 60:
            return False
        # Whoever trains without this machine's unit leaves traces in the bucket.
        self._busy = max([self._busy, *self._traces()])
        return self._now() >= self._busy + minutes * 60

    def _traces(self) -> Iterator[float]:
        """Yield when each object of a job was written."""
        address = f"{STORAGE}storage/v1/b/{urllib.parse.quote(self._place.bucket)}/o"
        query = {"prefix": "jobs/", "fields": "items(updated),nextPageToken"}
        while True:
            status, page = self._call("GET", f"{address}?{urllib.parse.urlencode(query)}", None)
            if status != 200:
                raise OSError(f"HTTP status {status} for {address}: {_message(page)}")
            for found in page.get("items", []):
                yield _seconds(found["updated"])
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _stop(self, node: Json, why: str) -> None:
        self._note(node, "stopped", why)
        self._act("POST", f"{_version(node)}/{self._place.node(_name(node))}:stop", "{}")

    def _delete(self, nodes: list[Json], why: str) -> None:
        for node in nodes:
            self._note(node, "deleted", why)
        # What came out of the queue goes with its request, which may have asked for several.
        for queued in sorted({node["queuedResource"] for node in nodes if _is_queued(node)}):
            self._act("DELETE", f"v2/{queued}?force=true", None)
        for node in nodes:
            if not _is_queued(node):
                self._act("DELETE", f"{_version(node)}/{self._place.node(_name(node))}", None)

    def _act(self, method: str, path: str, body: str | None) -> None:
        status, answer = self._call(method, TPU + path, body)
        if status >= 300:
            raise OSError(f"HTTP status {status} for {method} {path}: {_message(answer)}")

    def _note(self, node: Json, what: str, why: str) -> None:
        """Say it before it is done: what is deleted may be this machine itself."""
        text = f"{_name(node)} is {what}: {why}"
        self._say(text)
        moment = datetime.fromtimestamp(self._now(), tz=timezone.utc)
        name = f"limits/{moment:%Y%m%dT%H%M%SZ}-{_name(node)}.txt"
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        address = f"{STORAGE}upload/storage/v1/b/{urllib.parse.quote(self._place.bucket)}/o"
        status, answer = self._call("POST", f"{address}?{query}", f"{moment:%FT%TZ} {text}\n")
        if status != 200:
            self._say(f"cannot write {name}: HTTP status {status}: {_message(answer)}")


def _name(node: Json) -> str:
    return str(node["name"].rpartition("/")[2])


def _is_queued(node: Json) -> bool:
    return bool(node.get("queuedResource"))


def _can_be_stopped(node: Json) -> bool:
    return len(node.get("networkEndpoints", [])) == 1 and not _is_queued(node)


def _version(node: Json) -> str:
    """Return the API version that stops this kind of TPU: classic nodes have only v1."""
    return "v1" if node.get("apiVersion", "").startswith("V1") else "v2"


def _seconds(timestamp: str) -> float:
    # Python 3.10 reads neither Z nor the nanoseconds that Google writes.
    moment = datetime.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=timezone.utc).timestamp()


def _message(answer: Json) -> str:
    return str(answer.get("error", {}).get("message", "no message"))


class Machine:
    """The machine that this runs on."""

    def __init__(self) -> None:
        self._etag = ""

    def attribute(self, name: str) -> str:
        """Return a metadata value."""
        return self._metadata(f"attributes/{name}")[0]

    def limits(self) -> Json:
        """Return the limits: at once at first, then on a change or for the next round."""
        query = {"wait_for_change": "true", "timeout_sec": str(LOOK_SECONDS)}
        query["last_etag"] = self._etag or "0"
        text, self._etag = self._metadata(f"attributes/limits?{urllib.parse.urlencode(query)}")
        return dict(json.loads(text))

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        """Call Google as the machine's account."""
        token = json.loads(self._metadata("service-accounts/default/token")[0])["access_token"]
        content = "application/json" if url.startswith(TPU) else "text/plain"
        headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
        data = None if body is None else body.encode()
        request = urllib.request.Request(url, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LOOK_SECONDS) as response:
                return response.status, json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text.startswith(b"{") else {}

    @staticmethod
    def training() -> bool:
        """Return whether the trainer's unit runs."""
        command = ["systemctl", "is-active", "--quiet", "training"]
        return subprocess.run(command, check=False).returncode == 0

    @staticmethod
    def turn_off() -> None:
        """Turn the machine off."""
        subprocess.run(["systemctl", "poweroff"], check=True)

    def _metadata(self, path: str) -> tuple[str, str]:
        request = urllib.request.Request(METADATA + path, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=2 * LOOK_SECONDS) as response:
            return response.read().decode(), response.headers.get("ETag", "")


def say(text: str) -> None:
    """Write a line to the journal and the serial port."""
    print(f"tpu-stack limits: {text}", flush=True)


def until_it_works(step: Callable[[], bool]) -> bool:
    """Repeat a step until it works: grants may not count yet, a service may be unavailable."""
    while True:
        try:
            return step()
        except OSError as error:
            say(f"trying again: {error}")
            time.sleep(LOOK_SECONDS / 4)


def main() -> None:
    """Enforce the limits until the time is up, or wake what was stopped."""
    machine = Machine()
    bucket = machine.attribute("bucket-url").removeprefix("gs://")
    place = Place(machine.attribute("tpu-project"), machine.attribute("tpu-zone"), bucket)
    enforcer = LimitEnforcer(place, machine.call, machine.training, time.time, say)
    if sys.argv[1:] == ["wake"]:
        until_it_works(lambda: enforcer.wake(machine.limits()))
        return

    def look() -> bool:
        limits = machine.limits()
        return enforcer.look(limits) and bool(limits.get("turnOff"))

    while not until_it_works(look):
        pass
    say("turning this machine off")
    machine.turn_off()


if __name__ == "__main__":
    main()
