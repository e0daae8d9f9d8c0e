"""A TPU and a bucket that keep virtual time, behind the calls that the agent makes."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.month.trace import DELETE_SECONDS, Tpu
from tpu_core.google import Answer, Body, Json

BODY = {"acceleratorType": "v2-8", "labels": {"tpu-stack-mark": "month"}}


@dataclass
class Life:
    """What has become of one TPU; times that are not reached yet are infinite."""

    asked: float
    ready: float
    preempted: float


@dataclass
class Cloud:
    """The cloud at the moment `now`."""

    trace: Iterator[Tpu]
    now: float = 0.0
    lives: list[Life] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    deleted: float = float("inf")

    def state(self) -> str | None:
        """Return the TPU's state; None if there is none."""
        if not self.lives or self.now >= self.deleted + DELETE_SECONDS:
            return None
        if self.now >= self.deleted:
            return "DELETING"
        life = self.lives[-1]
        if self.now >= life.preempted:
            return "PREEMPTED"
        return "READY" if self.now >= life.ready else "CREATING"

    def create(self) -> None:
        """Start to create the next TPU of the trace."""
        tpu = next(self.trace)
        ready = self.now + tpu.takes
        self.lives.append(Life(self.now, ready, ready + tpu.lives))
        self.deleted = float("inf")

    def delete(self) -> None:
        """Start to delete the TPU."""
        self.deleted = min(self.deleted, self.now)

    def send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        """Answer a request of the agent's."""
        sent = b"" if body is None else bytes(body)  # type: ignore[arg-type]
        if "/storage/v1/" in url:
            return self._object(method, url, sent)
        status, answer = self.call(method, url, sent.decode())
        return status, {}, json.dumps(answer).encode()

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        """Answer a call of the agent's."""
        state = self.state()
        if "/operations/" in url:
            return 200, {"done": state != "CREATING"}
        if method == "POST":
            if state is not None:
                return 409, {"error": {"message": "it exists already"}}
            self.create()
            return 200, {"name": "projects/p/locations/z/operations/o"}
        if state is None:
            return 404, {"error": {"message": "there is none"}}
        if method == "DELETE":
            self.delete()
            return 200, {}
        asked = time.gmtime(self.lives[-1].asked)
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", asked)
        return 200, {"state": state, "createTime": created, **BODY}

    def _object(self, method: str, url: str, body: bytes) -> Answer:
        head = {"x-goog-generation": "1"}
        if method == "POST":
            _, about, content, _ = body.split(body.partition(b"\r\n")[0])
            name = json.loads(about.partition(b"\r\n\r\n")[2])["name"]
            self.objects[name] = content.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
            return 200, head, b'{"generation": "1"}'
        found = self.objects.get(
            urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/o/")[2])
        )
        return (404, {}, b"{}") if found is None else (200, head, found)
