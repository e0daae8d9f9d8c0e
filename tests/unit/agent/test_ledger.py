"""The agent's ledger says what became of each TPU, from what Google answers alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Latency
from localcloud.services.tpu import nodes
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.ledger import Ledger
from tpu_agent.limits import LimitEnforcer
from tpu_agent.recovery import Recovery, World
from tpu_core.bucket import Bucket
from tpu_core.google import Call, Json
from tpu_core.tpu import Place

from .conftest import PARENT, PROJECT, TPU, ZONE, caller

BODY = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "labels": {"tpu-stack-mark": "abc"},
}
FOLDER = "jobs/a-job/ledger/"
BUCKET = "storage.googleapis.com/storage/v1/b/a-bucket/o"


@pytest.fixture
def latency() -> Latency:
    """A TPU takes 90 s to come and 45 s to go."""
    return "real"


class Agent:
    """The parts of the agent, as main.py puts them together."""

    def __init__(self, call: Call, clock: VirtualClock) -> None:
        self.clock, self.call = clock, call
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        def call(*sent: Any) -> tuple[int, Json]:
            return self.call(*sent)

        say, now, place = self.lines.append, self.clock.now, Place(PROJECT, ZONE, "a-bucket")
        ledger = Ledger(Bucket("a-bucket", FakeClient(call).send), "a-job", now, say)
        world = World(now, say, lambda host, port: None, lambda: 0.5)
        self.recovery = Recovery(place, FakeClient(call), world, ledger)
        self.enforcer = LimitEnforcer(
            place, FakeClient(call), lambda: False, now, say, ledger=ledger
        )

    def looks(self, seconds: float, **limits: float) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.clock.advance(10.0)
            self.recovery.look(["t"], {"preemption": 9, "failure": 9})
            self.enforcer.look({"tpus": ["t"], **limits})


@pytest.fixture
def agent(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Agent:
    write(google, "agent/declaration.json", json.dumps({"tpus": {"t": BODY}}))
    return Agent(caller(local_cloud), clock)


def write(google: Client, path: str, text: str) -> None:
    url = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    query = {"uploadType": "media", "name": path}
    google.session.post(url, params=query, data=text, timeout=30).raise_for_status()


def files(google: Client) -> list[Json]:
    """The ledger's files in the order of their names, which begin with their time."""
    found = [item["name"] for item in google.get(BUCKET, prefix=FOLDER).get("items", [])]
    return [
        google.get(f"{BUCKET}/{name.replace('/', '%2F')}", alt="media") for name in sorted(found)
    ]


def states(google: Client) -> list[str]:
    return [event["state"] for file in files(google) for event in file["events"]]


def preempt(cloud: LocalCloud) -> None:
    nodes.preempt(cloud.cloud, f"{PARENT}/nodes/t")


def test_a_preemption_is_recovering_until_another_is_provisioned(
    google: Client, agent: Agent, local_cloud: LocalCloud
) -> None:
    agent.looks(20)
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.looks(200)
    preempt(local_cloud)
    agent.looks(400)
    assert states(google) == [
        *("provisioning", "ready"),
        *("recovering", "provisioning", "ready"),
    ]
    (file,) = files(google)
    times = {event["state"]: event["at"] for event in file["events"]}
    assert times["recovering"] < times["provisioning"] < times["ready"] <= file["seen"]
    assert [event["cause"] for event in file["events"]][2:] == ["PREEMPTED", "PREEMPTED", ""]


def test_a_stock_out_is_the_cause_of_the_time_that_it_takes(
    google: Client, agent: Agent, local_cloud: LocalCloud
) -> None:
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.looks(200)
    local_cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    preempt(local_cloud)
    agent.looks(300)
    last = files(google)[0]["events"][-1]
    assert last["state"] in ("recovering", "provisioning")
    assert last["cause"].startswith("stock-out: There is no more capacity")


def test_what_a_limit_stops_or_deletes_is_stopped_and_a_persons_deletion_is_not(
    google: Client, agent: Agent
) -> None:
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.looks(200)
    google.delete(f"{TPU}/nodes/t")
    agent.looks(100)
    assert states(google)[-1] == "absent"
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.looks(200)
    agent.looks(100, timeToLiveHours=0.001)
    assert states(google)[-2:] == ["ready", "stopped"]


def ledger_of(written: dict[str, Json], clock: VirtualClock) -> Ledger:
    """A ledger whose files, by their URLs, are in `written`."""

    def google(method: str, url: str, body: str | None) -> tuple[int, Json]:
        written[url] = json.loads(body or "")
        return 200, {}

    return Ledger(Bucket("b", FakeClient(google).send), "j", clock.now, lambda _: None)


def test_a_queued_tpu_waits_in_the_queue_and_leaves_it(clock: VirtualClock) -> None:
    written: dict[str, Json] = {}
    ledger = ledger_of(written, clock)
    ledger.saw_request(["t"], "waiting", "WAITING_FOR_RESOURCES")
    ledger.saw("t", None)
    ledger.saw_request(["t"], "coming", "PROVISIONING")
    ledger.saw("t", "READY")
    ledger.removed(["t"], comes_back=False)
    ledger.saw("t", None)
    (file,) = written.values()
    assert [event["state"] for event in file["events"]] == [
        *("queued", "provisioning", "ready", "stopped"),
    ]


def test_a_state_that_google_does_not_document_says_nothing(clock: VirtualClock) -> None:
    written: dict[str, Json] = {}
    ledger = ledger_of(written, clock)
    ledger.saw("t", "STATE_UNSPECIFIED")
    ledger.saw_request(["t"], "unknown", "NEW")
    assert written == {}


def test_signs_of_life_are_rare_and_a_killed_agent_continues_in_a_file_of_its_own(
    google: Client, agent: Agent
) -> None:
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    writes = 0

    def counted(method: str, url: str, body: str | None) -> tuple[int, Json]:
        nonlocal writes
        writes += "ledger" in url
        return real(method, url, body)

    real, agent.call = agent.call, counted
    agent.looks(3600)
    assert 2 + 10 <= writes <= 2 + 13
    agent.start()
    agent.looks(20)
    first, second = files(google)
    assert [event["state"] for event in second["events"]] == ["ready"]
    assert first["seen"] < second["seen"]


def test_a_bucket_that_refuses_never_stops_the_agent_and_gets_all_of_it_later(
    google: Client, agent: Agent
) -> None:
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    real = agent.call

    def refused(method: str, url: str, body: str | None) -> tuple[int, Json]:
        if "ledger" in url:
            return 503, {"error": {"message": "later"}}
        return real(method, url, body)

    agent.call = refused
    agent.looks(200)
    said = [line for line in agent.lines if "the ledger could not be written" in line]
    assert len(said) == 1, "once, however often it is tried"
    agent.call = real
    agent.looks(20)
    assert states(google) == ["provisioning", "ready"]


def test_the_ledger_is_no_trace_of_a_trainer(google: Client, agent: Agent) -> None:
    google.post(f"{TPU}/nodes", BODY, nodeId="t")
    agent.looks(200)
    agent.looks(3600, idleMinutes=30)
    assert states(google)[-1] == "stopped"


def test_a_file_does_not_grow_without_end(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_agent.ledger._MOST_EVENTS", 50)
    written: dict[str, Json] = {}
    ledger = ledger_of(written, clock)
    for number in range(121):
        clock.advance(1.0)
        ledger.saw("t", "READY" if number % 2 else "PREEMPTED")
    assert [len(file["events"]) for file in written.values()] == [50, 50, 21]
