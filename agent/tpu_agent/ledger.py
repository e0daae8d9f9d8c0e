"""Write down what becomes of the TPUs, beside what the trainer writes of itself.

It listens to what the agent asks Google and to the answers, so that every way to lose a TPU and to
make it anew is covered, and nothing is asked twice. The trainer reads nothing of it; `tpustack
goodput` splits by it the time in which no trainer ran.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from tpu_core.causes import cause_of
from tpu_core.google import Call, Json, JsonBucket, message
from tpu_core.records import stamped
from tpu_core.times import timestamp
from tpu_core.tpu import TPU, state_of

# A sign of life: how long the last state is known to have held when the machine is killed.
_SIGN_SECONDS = 300.0
# A new file after so many changes: each is written whole.
_MOST_EVENTS = 500
_NODES = {
    **dict.fromkeys(("CREATING", "STARTING", "RESTARTING"), "provisioning"),
    **dict.fromkeys(("PREEMPTED", "TERMINATED", "REIMAGING", "REPAIRING"), "recovering"),
    **dict.fromkeys(("STOPPING", "STOPPED", "HIDING", "HIDDEN", "UNHIDING"), "stopped"),
    "READY": "ready",
}
_REQUESTS = {
    **dict.fromkeys(("ACCEPTED", "WAITING_FOR_RESOURCES"), "queued"),
    **dict.fromkeys(("CREATING", "PROVISIONING"), "provisioning"),
    **dict.fromkeys(("SUSPENDING", "SUSPENDED", "FAILED"), "recovering"),
}
_NODE = re.compile(r"/nodes/([^/:]+)(:\w+)?$")


class Ledger:
    """One file of the job's ledger, `jobs/JOB/ledger/tpus-BEGIN-MACHINE.json`.

    It never stands in the agent's way: what can't be written is said, and written later.
    """

    def __init__(
        self, bucket: JsonBucket, job: str, now: Callable[[], float], say: Callable[[str], None]
    ) -> None:
        self._bucket, self._folder, self._now, self._say = bucket, f"jobs/{job}/ledger", now, say
        self._machine, self._lock = socket.gethostname(), threading.Lock()
        self._states: dict[str, tuple[str, str]] = {}
        self._events: list[Json] = []
        self._paths: dict[str, str] = {}
        # The TPUs of queued resources and of creations, by their names.
        self._requests: dict[str, set[str]] = {}
        self._creations: dict[str, str] = {}
        self._path, self._written, self._changed, self._refused = "", 0.0, False, ""

    def listening(self, call: Call, removal: str) -> Call:
        """Return `call`, listened to; a TPU that it deletes is in the state `removal` from then."""

        def listened(method: str, url: str, body: str | None) -> tuple[int, Json]:
            status, answer = call(method, url, body)
            try:
                if url.startswith(TPU):
                    with self._lock:
                        self._hear(method, url, status, answer, removal)
            except Exception as error:
                self._say(f"the ledger does not understand {method} {url}: {error!r}")
            return status, answer

        return listened

    def _hear(self, method: str, url: str, status: int, answer: Json, removal: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        node = _NODE.search(parts.path)
        if method == "GET" and node:
            self._looked_up(node[1], parts.path, status, answer)
        elif method == "GET" and "/queuedResources/" in parts.path and status == 200:
            self._looked_up_request(parts.path.rpartition("/")[2], answer)
        elif method == "DELETE" and status in (200, 400, 409):
            request = parts.path.rpartition("/")[2]
            for tpu in {node[1]} if node else self._requests.get(request, ()):
                self._is(tpu, removal, self._known(tpu)[1])
        elif method == "POST" and "nodeId" in query:
            tpu = query["nodeId"][0]
            self._creations[str(answer.get("name"))] = tpu
            made = "provisioning", self._known(tpu)[1]
            self._is(tpu, *(made if status in (200, 409) else _refused(status, answer)))
        elif method == "POST" and "queuedResourceId" in query and status not in (200, 409):
            for tpu in self._requests.get(query["queuedResourceId"][0], ()):
                self._is(tpu, *_refused(status, answer))
        elif answer.get("error") and answer.get("name") in self._creations:
            code = answer["error"].get("code", 0)
            self._is(self._creations[answer["name"]], *_refused(code, answer))
        self._keep()

    def _looked_up(self, tpu: str, path: str, status: int, node: Json) -> None:
        if status == 200:
            self._paths[tpu] = path
        elif self._paths.get(tpu, path) != path:
            return  # It was asked for in another zone than it was in, which says nothing.
        known, cause = self._known(tpu)
        state = state_of(node) if status == 200 else "gone"
        if request := node.get("queuedResource"):
            self._requests.setdefault(request.rpartition("/")[2], set()).add(tpu)
        if state in _NODES:
            # Why a TPU is made anew stays known until it is READY.
            causes = {"READY": "", "CREATING": cause}
            self._is(tpu, _NODES[state], causes.get(state, state))
        # What the agent deletes is on its way back; what a person deletes was meant.
        elif state in ("DELETING", "gone") and known == "ready":
            self._is(tpu, "absent", "")

    def _looked_up_request(self, name: str, request: Json) -> None:
        state = state_of(request.get("state") or {})
        tpus = self._requests.setdefault(name, set())
        tpus |= _asked_for(request)
        for tpu in tpus if state in _REQUESTS else ():
            # The TPU itself says why it was lost, and both are looked up in turns.
            if self._known(tpu)[0] != _REQUESTS[state]:
                self._is(tpu, _REQUESTS[state], state)

    def _known(self, tpu: str) -> tuple[str, str]:
        return self._states.get(tpu, ("", ""))

    def _is(self, tpu: str, state: str, cause: str) -> None:
        if self._states.get(tpu) == (state, cause):
            return
        self._states[tpu] = (state, cause)
        if len(self._events) >= _MOST_EVENTS:
            self._path = ""
        if not self._path:
            self._path = f"{self._folder}/tpus-{timestamp(self._now())}-{self._machine}.json"
            self._events = [self._event(known) for known in sorted(self._states)]
        else:
            self._events.append(self._event(tpu))
        self._changed = True

    def _event(self, tpu: str) -> Json:
        state, cause = self._states[tpu]
        return {"at": round(self._now(), 3), "tpu": tpu, "state": state, "cause": cause}

    def _keep(self) -> None:
        """Write what is new at once, a sign of life from time to time."""
        seen = self._now()
        if not self._events or (not self._changed and seen - self._written < _SIGN_SECONDS):
            return
        content = {"machine": self._machine, "seen": round(seen, 3), "events": self._events}
        self._written, self._changed = seen, False
        try:
            self._bucket.write(self._path, json.dumps(stamped(content)) + "\n")
        except OSError as error:
            # The next answer of Google's brings it.
            self._changed = True
            if self._refused != str(error):
                self._say(f"the ledger is not written: {error}")
            self._refused = str(error)
        else:
            self._refused = ""


def _asked_for(request: Json) -> set[str]:
    """Return the names of the TPUs that a request is for."""
    names = set()
    for spec in request.get("tpu", {}).get("nodeSpec", []):
        several = spec.get("multiNodeParams") or {}
        prefix, count = several.get("nodeIdPrefix"), int(several.get("nodeCount", 0))
        names |= {f"{prefix}-{n}" for n in range(count)} or {spec.get("nodeId")}
    return names - {None}


def _refused(code: int, answer: Json) -> tuple[str, str]:
    cause = cause_of(code, answer)
    return "recovering", f"{cause.name}: {message(answer)}"[:200]
