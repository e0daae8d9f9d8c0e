"""The local cloud without its port, asked what the provider would ask of Google."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal, Request
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER
from localcloud.core.store import Record
from tests.unit.localcloud.fake_machines import FakeMachines

from .calls import Call, key_calls
from .generate_values import (
    GIVEN_GIB,
    GIVEN_NETWORK,
    GIVEN_SNAPSHOT,
    GIVEN_TOPIC,
    PROJECT,
    REGIONS,
    given_key,
    given_range,
)

Json = dict[str, Any]
_APIS = (
    *("tpu", "compute", "storage", "iam", "cloudresourcemanager"),
    *("cloudkms", "pubsub", "monitoring", "billingbudgets"),
)
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_MACHINES = (
    *("/nodes", "/queuedResources", "/instances", "/createInstances"),
    "/instanceGroupManagers",
)


@dataclass
class _Done:
    """A call that Google took, what it answered, and what takes it back."""

    call: Call
    answer: Json
    undo: Callable[[], None]


class Google:
    """Each stack finds what is given in every project, and nothing of the stacks before it.

    What a stack begins with as the one before it is left standing for it: stacks in the order of
    their calls need few of them.
    """

    def __init__(self, home: Path) -> None:
        # Time stands still, so that machines are asked for and never come: asking is what counts.
        self._local = LocalCloud(home, clock=VirtualClock(), latency="real")
        self._cloud, self._machines = self._local.cloud, FakeMachines()
        self._cloud.machines = self._machines
        self._local.start()
        projects.enable_services(
            self._cloud, PROJECT, tuple(f"{api}.googleapis.com" for api in _APIS)
        )
        self._cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
        self._cloud.store.put("setting", "ai-zones", {"on": True})
        self._local.cloud.clock.advance(3600)  # type: ignore[attr-defined]
        token = self._cloud.token(Principal(DEVELOPER, frozenset({_SCOPE})), lifetime=1e9)
        # The budgets' API wants to know in which project's name it is asked.
        self._headers = {"Authorization": f"Bearer {token}", "X-Goog-User-Project": PROJECT}
        self._number = self._project_number()
        self._standing: list[_Done] = []
        assert (refused := self.refuses(list(_given()))) == "", refused
        self._standing.clear()

    def refuses(self, wanted: Sequence[Call]) -> str:
        """What Google says to the first call that it refuses; empty when it takes all."""
        alike = [done.call == call for done, call in zip(self._standing, wanted, strict=False)]
        same = alike.index(False) if False in alike else len(alike)
        while len(self._standing) > same:
            self._standing.pop().undo()
        for call in wanted[same:]:
            undo = self._journal()
            status, answer = self._creation(*call)
            if status != 200:
                undo()
                assert answer["error"]["code"] < 500, answer
                return f"{call[1]}: {answer['error']['message']}"
            self._standing.append(_Done(call, answer, undo))
        return ""

    def stop(self) -> None:
        """End it. Raises AssertionError if a machine has come: one that is undone would stay."""
        self._local.stop()
        assert self._machines.specs == {}

    def _creation(
        self, host: str, path: str, query: dict[str, str], body: Json
    ) -> tuple[int, Json]:
        self._cloud.latency_profile = "real" if path.endswith(_MACHINES) else "none"
        text = json.dumps(body).replace("{number}", self._number)
        for done in self._standing:
            if done.call[1].endswith("/notificationChannels"):
                text = text.replace("{channel}", done.answer["name"], 1)
        # A topic is made under the name that it will have.
        method = "PUT" if host.startswith("pubsub") else "POST"
        return self._ask(method, host, path, query, text.encode())

    def _ask(
        self, method: str, host: str, path: str, query: dict[str, str], raw: bytes
    ) -> tuple[int, Json]:
        many = {key: [value] for key, value in query.items()}
        answer = self._local.dispatcher.answer(
            Request(method, host, path, many, self._headers, io.BytesIO(raw), len(raw))
        )
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)

    def _project_number(self) -> str:
        host = "cloudresourcemanager.googleapis.com"
        _, project = self._ask("GET", host, f"/v1/projects/{PROJECT}", {}, b"")
        return str(project["projectNumber"])

    def _journal(self) -> Callable[[], None]:
        """Note what changes from now on, until the next call of this; the result takes it back."""
        store, before = self._cloud.store, dict[tuple[str, str], "Record | None"]()
        put, delete = type(store).put, type(store).delete

        def noting_put(kind: str, key: str, record: Record) -> None:
            before.setdefault((kind, key), store.get(kind, key))
            put(store, kind, key, record)

        def noting_delete(kind: str, key: str) -> bool:
            before.setdefault((kind, key), store.get(kind, key))
            return delete(store, kind, key)

        store.put, store.delete = noting_put, noting_delete  # type: ignore[method-assign]

        def undo() -> None:
            for (kind, key), record in before.items():
                if record is None:
                    delete(store, kind, key)
                else:
                    put(store, kind, key, record)

        return undo


def _given() -> Iterator[Call]:
    host, compute = "compute.googleapis.com", f"/compute/beta/projects/{PROJECT}"
    zone = f"{compute}/zones/{REGIONS[0]}-a"
    disk = {"name": "corpus", "sizeGb": str(GIVEN_GIB)}
    snapshot = {"name": GIVEN_SNAPSHOT.rpartition("/")[2]}
    yield "pubsub.googleapis.com", f"/v1/{GIVEN_TOPIC}", {}, {}
    network = {"name": GIVEN_NETWORK, "autoCreateSubnetworks": False}
    yield host, f"{compute}/global/networks", {}, network
    for region in REGIONS:
        yield from key_calls(given_key(region), 90)
        asked = {
            "name": GIVEN_NETWORK,
            "network": f"projects/{PROJECT}/global/networks/{GIVEN_NETWORK}",
            "ipCidrRange": str(given_range(region)),
        }
        yield host, f"{compute}/regions/{region}/subnetworks", {}, asked
    yield host, f"{zone}/disks", {}, disk
    yield host, f"{zone}/disks/corpus/createSnapshot", {}, snapshot
