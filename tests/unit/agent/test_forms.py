"""Requests in the queue, with one TPU or several, and classic nodes are recreated as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault, Latency
from localcloud.services.tpu import nodes
from localcloud.services.tpu.api import QUEUED
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.ledger import Ledger
from tpu_agent.limits import LimitEnforcer
from tpu_agent.recovery import Recovery, World
from tpu_core.bucket import Bucket
from tpu_core.google import Call, Json
from tpu_core.paths import WANTED
from tpu_core.tpu import Place

from .conftest import PARENT, PROJECT, TPU, ZONE, Killed, caller, state

LABELS = {"tpu-stack-mark": "abc"}
NODE = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "networkConfig": {"network": "default", "enableExternalIps": False},
    "metadata": {"tpu-name": "q"},
    "labels": LABELS,
}
CLASSIC = {
    "acceleratorType": "v2-8",
    "tensorflowVersion": "2.12.1",
    "cidrBlock": "10.240.1.0/29",
    "network": "default",
    "schedulingConfig": {"preemptible": True},
    "labels": LABELS,
}
REQUESTS = f"tpu.googleapis.com/v2alpha1/{PARENT}/queuedResources"
UPLOAD = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
BUDGETS = {"preemption": 48, "failure": 10}


def spot(**names: object) -> Json:
    spec = {"parent": PARENT, "node": NODE, **names}
    return {"tpu": {"nodeSpec": [spec]}, "spot": {}}


ONE = spot(nodeId="q")
TWO = spot(multiNodeParams={"nodeCount": 2, "nodeIdPrefix": "q"})


@pytest.fixture
def latency() -> Latency:
    return "real"


@dataclass
class Agent:
    """The agent's program for one form."""

    cloud: LocalCloud
    google: Client
    clock: VirtualClock
    tpus: list[str]
    request: str | None = None
    silent: str | None = None
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.call: Call = caller(self.cloud)
        self.start()

    def start(self) -> None:
        world = World(self.clock.now, self.lines.append, lambda *_: self.silent, lambda: 0.5)
        client = FakeClient(lambda *sent: self.call(*sent))
        bucket = Bucket("a-bucket", client.send)
        self.ledger = Ledger(bucket, "a-job", self.clock.now, self.lines.append)
        place = Place(PROJECT, ZONE, "a-bucket")
        self.recovery = Recovery(place, client, world, self.ledger)

    def looks(
        self, seconds: float, until: Callable[[], bool] = lambda: False, **budgets: int
    ) -> None:
        end = self.clock.now() + seconds
        while not until() and self.clock.now() < end:
            self.recovery.look(self.tpus, BUDGETS | budgets, self.request)
            self.clock.advance(10.0)

    def are(self, wanted: str) -> Callable[[], bool]:
        return lambda: all(state(self.google, name) == wanted for name in self.tpus)

    def preempt(self, name: str) -> None:
        nodes.preempt(self.cloud.cloud, f"{PARENT}/nodes/{name}")


def declare(google: Client, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps({"tpus": content})
    query = {"uploadType": "media", "name": "agent/declaration.json"}
    google.session.post(UPLOAD, params=query, data=text, timeout=30).raise_for_status()


def queued(cloud: LocalCloud, google: Client, clock: VirtualClock, body: Json) -> Agent:
    declare(google, {"q": body})
    google.post(REQUESTS, body, queuedResourceId="q")
    several = "multiNodeParams" in body["tpu"]["nodeSpec"][0]
    agent = Agent(cloud, google, clock, ["q-0", "q-1"] if several else ["q"], "q")
    agent.looks(900, until=agent.are("READY"))
    agent.looks(20)
    assert agent.are("READY")()
    assert agent.lines == []
    return agent


@pytest.fixture(params=[ONE, TWO], ids=["one TPU", "two slices"])
def agent(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock, request: pytest.FixtureRequest
) -> Agent:
    return queued(local_cloud, google, clock, request.param)


def node(cloud: LocalCloud, google: Client, clock: VirtualClock) -> Agent:
    declare(google, {"c": CLASSIC})
    cloud.cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
    google.post(TPU.replace("/v2/", "/v1/") + "/nodes", CLASSIC, nodeId="c")
    agent = Agent(cloud, google, clock, ["c"])
    agent.looks(900, until=agent.are("READY"))
    return agent


@pytest.fixture
def classic(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Agent:
    return node(local_cloud, google, clock)


def lasting(found: Json) -> Json:
    """What does not differ between two of one declaration."""
    passing = (
        *("createTime", "networkEndpoints", "id", "state"),
        *("serviceAccount", "ipAddress", "port"),
    )
    return {key: value for key, value in found.items() if key not in passing}


def request_of(google: Client) -> Json:
    return google.get(f"{REQUESTS}/q")


def test_a_preempted_tpu_goes_back_into_the_queue_with_all_of_its_request(
    agent: Agent, google: Client
) -> None:
    before, first = request_of(google), {n: google.get(f"{TPU}/nodes/{n}") for n in agent.tpus}
    agent.preempt(agent.tpus[-1])
    agent.looks(900, until=agent.are("READY"))
    agent.looks(20)
    again = {n: google.get(f"{TPU}/nodes/{n}") for n in agent.tpus}
    assert lasting(request_of(google)) == lasting(before)
    assert request_of(google)["createTime"] != before["createTime"]
    assert {n: lasting(one) for n, one in again.items()} == {
        n: lasting(one) for n, one in first.items()
    }
    assert agent.lines[0] == "q is deleted and recreated: it is SUSPENDED"
    assert agent.lines[1].startswith("q is back after ")


def test_a_request_whose_tpu_is_preempted_while_it_is_created_goes_back_more_slowly(
    agent: Agent, google: Client
) -> None:
    agent.preempt(agent.tpus[0])
    agent.looks(900, until=agent.are("CREATING"))
    agent.preempt(agent.tpus[0])
    agent.looks(1200, until=agent.are("READY"))
    assert agent.are("READY")()


def test_a_request_waits_in_the_queue_as_long_as_it_takes_and_asks_for_nothing_meanwhile(
    agent: Agent, google: Client
) -> None:
    agent.cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    agent.preempt(agent.tpus[0])
    agent.looks(600)
    assert request_of(google)["state"]["state"] == "ACCEPTED"
    since, call, sent = request_of(google)["createTime"], agent.call, list[str]()

    def counted(method: str, url: str, body: str | None) -> tuple[int, Json]:
        sent.append(method)
        return call(method, url, body)

    agent.call = counted
    agent.looks(3600)
    # A sign of life in the ledger each five minutes is all that is written.
    assert sent.count("POST") <= 12
    assert "DELETE" not in sent
    assert request_of(google)["createTime"] == since
    agent.cloud.cloud.store.delete("setting", "stockout")
    agent.looks(900, until=agent.are("READY"))
    assert agent.are("READY")()


class Failing:
    """Each request that the agent makes fails at once."""

    def __init__(self, agent: Agent, code: int, message: str) -> None:
        self.made, self.agent, self.call = 0, agent, agent.call
        self.error = {"code": code, "message": message}
        agent.call = self
        self.fail()

    def __call__(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        answer = self.call(method, url, body)
        if method == "POST" and "queuedResourceId" in url and answer[0] == 200:
            self.made += 1
            self.fail()
        return answer

    def fail(self) -> None:
        store, name = self.agent.cloud.cloud.store, f"{PARENT}/queuedResources/q"
        record = store.get(QUEUED, name)
        assert record is not None
        failed = {"state": "FAILED", "failedData": {"error": self.error}}
        store.put(QUEUED, name, {**record, "state": failed})


def test_a_request_that_fails_is_queued_again_with_growing_pauses_until_the_budget_ends(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    agent = queued(local_cloud, google, clock, ONE)
    failing = Failing(agent, 13, "no luck")
    begun = clock.now()
    agent.looks(6 * 3600, until=lambda: "no longer recovered" in "".join(agent.lines[-1:]))
    assert failing.made == BUDGETS["failure"]
    assert clock.now() - begun > 1800, "the pauses grow"
    assert "q is no longer recovered: it is FAILED (no luck)" in agent.lines[-1]
    assert "a day (failure)" in agent.lines[-1]


@pytest.mark.slow
def test_a_request_that_fails_for_want_of_capacity_is_queued_again_all_day(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    agent = queued(local_cloud, google, clock, ONE)
    failing = Failing(agent, 8, "There is no more capacity in the zone")
    agent.looks(6 * 3600)
    assert BUDGETS["failure"] < failing.made < 80, "neither given up nor hammered"
    agent.call = failing.call
    agent.looks(2400, until=agent.are("READY"))
    assert agent.are("READY")()


def test_a_tpu_of_an_active_request_that_is_dead_takes_the_request_with_it(
    agent: Agent, google: Client
) -> None:
    before = request_of(google)["createTime"]
    agent.silent = "connection refused"
    agent.looks(320)
    agent.silent = None
    assert "is READY, but" in agent.lines[0]
    agent.looks(900, until=agent.are("gone"))
    agent.looks(900, until=agent.are("READY"))
    assert request_of(google)["createTime"] != before


def test_a_request_that_someone_deletes_stays_deleted_also_while_it_waits(
    agent: Agent, google: Client
) -> None:
    agent.cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    agent.preempt(agent.tpus[0])
    agent.looks(600)
    google.call("DELETE", f"{REQUESTS}/q", force="true")
    agent.cloud.cloud.store.delete("setting", "stockout")
    agent.looks(900)
    assert google.get(REQUESTS).get("queuedResources", []) == []
    assert agent.lines[-1] == "q was recreated, and then deleted manually: left alone"


def test_a_request_of_another_stack_is_never_deleted(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    agent = queued(local_cloud, google, clock, ONE)
    mine = json.loads(json.dumps(ONE))
    mine["tpu"]["nodeSpec"][0]["node"]["labels"] = {"tpu-stack-mark": "mine"}
    declare(google, {"q": mine})
    agent.preempt("q")
    agent.looks(600)
    assert request_of(google)["state"]["state"] == "SUSPENDED"
    assert agent.lines == ["q is not labeled as this stack's: left alone"]


DAMAGED: list[Any] = [
    "{",
    {"q": []},
    {"q": {"tpu": 1}},
    {"q": {"tpu": {"nodeSpec": 1}}},
    {"q": {"tpu": {"nodeSpec": ["a"]}}},
    {"q": {"tpu": {"nodeSpec": [{"node": {"labels": 5}}]}}},
]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_with_a_damaged_declaration_no_request_is_deleted(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock, damaged: Any
) -> None:
    agent = queued(local_cloud, google, clock, ONE)
    declare(google, damaged)
    agent.preempt("q")
    agent.looks(100)
    assert request_of(google)["state"]["state"] == "SUSPENDED"
    assert "`pulumi up` to write it" in agent.lines[-1]


def test_a_request_in_a_state_that_is_unknown_is_left_alone(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock
) -> None:
    agent = queued(local_cloud, google, clock, ONE)
    call = agent.call

    def strange(method: str, url: str, body: str | None) -> tuple[int, Json]:
        status, answer = call(method, url, body)
        return status, {**answer, "state": {"state": "MOONED"}} if "/queued" in url else answer

    agent.call = strange
    agent.looks(600)
    assert agent.lines == ["q is in the unknown state MOONED: left alone"]


def test_the_ledger_says_that_each_tpu_of_the_request_was_queued(
    agent: Agent, google: Client
) -> None:
    agent.cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    agent.preempt(agent.tpus[0])
    agent.looks(300)
    agent.cloud.cloud.store.delete("setting", "stockout")
    agent.looks(900, until=agent.are("READY"))
    agent.looks(20)
    found = google.get("storage.googleapis.com/storage/v1/b/a-bucket/o", prefix="jobs/")
    paths = [item["name"].replace("/", "%2F") for item in found["items"]]
    url = "storage.googleapis.com/storage/v1/b/a-bucket/o"
    events = [e for path in paths for e in google.get(f"{url}/{path}", alt="media")["events"]]
    for name in agent.tpus:
        states = [event["state"] for event in events if event["tpu"] == name]
        assert states[-4:] == ["recovering", "queued", "provisioning", "ready"]


@pytest.mark.parametrize("body", [ONE, TWO], ids=["one TPU", "two slices"])
def test_the_way_back_into_the_queue_survives_kills_at_every_call(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock, body: Json
) -> None:
    agent = queued(local_cloud, google, clock, body)
    call = agent.call
    for last in range(12):
        calls = 0

        def deadly(method: str, url: str, body: str | None, last: int = last) -> tuple[int, Json]:
            nonlocal calls
            calls += 1
            answer = call(method, url, body)
            if method != "GET" and calls >= last:
                calls = -10_000
                raise Killed
            return answer

        agent.preempt(agent.tpus[0])
        agent.call = deadly
        for _ in range(3):
            try:
                agent.looks(30)
            except Killed:
                agent.start()
        agent.call = call
        agent.looks(900, until=agent.are("READY"))
        agent.looks(20)
        assert agent.are("READY")()


def test_a_classic_node_comes_back_with_its_version_and_its_addresses(
    classic: Agent, google: Client
) -> None:
    url = TPU.replace("/v2/", "/v1/") + "/nodes/c"
    before = google.get(url)
    classic.preempt("c")
    classic.looks(900, until=classic.are("READY"))
    assert classic.are("READY")()
    assert lasting(google.get(url)) == lasting(before)
    assert google.get(url)["createTime"] != before["createTime"]
    classic.looks(20)
    assert classic.lines[0] == "c is deleted and recreated: it is PREEMPTED"
    assert classic.lines[1].startswith("c is back after ")


def test_a_classic_node_that_is_preempted_while_it_is_created_comes_back_all_the_same(
    classic: Agent,
) -> None:
    classic.preempt("c")
    classic.looks(600, until=classic.are("CREATING"))
    classic.preempt("c")
    classic.looks(1200, until=classic.are("READY"))
    assert classic.are("READY")()


def test_a_classic_node_of_another_stack_is_never_deleted(classic: Agent, google: Client) -> None:
    declare(google, {"c": CLASSIC | {"labels": {"tpu-stack-mark": "mine"}}})
    classic.preempt("c")
    classic.looks(600)
    assert state(google, "c") == "PREEMPTED"
    assert classic.lines == ["c is not labeled as this stack's: left alone"]


@pytest.mark.parametrize("body", [ONE, TWO, CLASSIC], ids=["one TPU", "two slices", "classic"])
def test_an_api_that_fails_half_of_the_time_does_not_stop_the_way_back(
    local_cloud: LocalCloud, google: Client, clock: VirtualClock, body: Json
) -> None:
    if body is CLASSIC:
        agent = node(local_cloud, google, clock)
    else:
        agent = queued(local_cloud, google, clock, body)
    agent.cloud.cloud.faults.add(Fault("tpu.*", status=503, probability=0.5))
    agent.preempt(agent.tpus[0])
    for _ in range(60):
        try:
            agent.looks(10)
        except OSError:
            agent.clock.advance(10.0)
    agent.cloud.cloud.faults.clear()
    agent.looks(1800, until=agent.are("READY"))
    assert agent.are("READY")()


def test_a_request_that_a_limit_deletes_comes_back_with_all_its_tpus_for_a_job(
    agent: Agent, google: Client, clock: VirtualClock
) -> None:
    place = Place(PROJECT, ZONE, "a-bucket")
    enforcer = LimitEnforcer(
        place,
        FakeClient(agent.call),
        lambda: False,
        clock.now,
        agent.lines.append,
        sleep=lambda: agent.recovery.sleep(agent.tpus, agent.request),
    )
    for _ in range(11):
        clock.advance(60.0)
        enforcer.look({"tpus": agent.tpus, "idleMinutes": 10})
    agent.looks(600)
    assert agent.are("gone")()
    query = {"uploadType": "media", "name": WANTED}
    wanted = json.dumps({"at": clock.now()})
    google.session.post(UPLOAD, params=query, data=wanted, timeout=30).raise_for_status()
    agent.looks(900, until=agent.are("READY"))
    agent.looks(20)
    assert agent.are("READY")()
    assert "q is recreated: a job waits for it" in agent.lines
