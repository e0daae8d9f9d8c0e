"""A request in the queue goes on to the next zone when one has no capacity, and is never in two."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Latency
from localcloud.services.tpu import api, catalog, nodes
from localcloud.services.tpu.api import NODE as NODE_KIND, QUEUED
from localcloud.testing import Client, session
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.jobs.runner import Tpus
from tpu_agent.ledger import Ledger
from tpu_agent.limits import LimitEnforcer
from tpu_agent.main import Keeper
from tpu_agent.recovery import Recovery, World
from tpu_core.google import Call, Json
from tpu_core.tpu import Place, in_zone, look_up
from tpu_infra.credentials import client_of
from tpu_infra.resources import request
from tpu_infra.resources.request import QueuedNodeProvider, QueuedRequestProvider, TpuApi, id_of

from .conftest import PROJECT, Killed, caller, deadly

ZONES = ["us-central1-b", "us-central1-c", "us-central1-f"]
B, C, F = ZONES
MARK = {"tpu-stack-mark": "abc"}
NODE = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "networkConfig": {"network": "default", "enableExternalIps": False},
    "metadata": {"tpu-name": "q", "tpu-zone": B},
    "labels": MARK,
}
BUDGETS = {"preemption": 48, "failure": 10}
MINUTES = 15.0


def place(zone: str) -> str:
    return f"projects/{PROJECT}/locations/{zone}"


def body(**node: Any) -> Json:
    spec = {"parent": place(B), "nodeId": "q", "node": {**NODE, **node}}
    return {"tpu": {"nodeSpec": [spec]}, "spot": {}}


@pytest.fixture
def latency() -> Latency:
    return "real"


@pytest.fixture(autouse=True)
def three_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """No region has three zones with one type; here one has."""
    accelerator = catalog.accelerators()["v2-8"]
    zones = (*accelerator.zones, ZONES[2])
    monkeypatch.setitem(catalog.accelerators(), "v2-8", replace(accelerator, zones=zones))
    monkeypatch.setattr(catalog, "zones", lambda: zones)


class Stack:
    """A stack whose TPU may be in three zones, and its agent."""

    def __init__(self, cloud: LocalCloud, google: Client, clock: VirtualClock) -> None:
        self.cloud, self.google, self.clock = cloud, google, clock
        self.call: Call = caller(cloud)
        self.further = ZONES[1:]
        self.lines: list[str] = []
        self.most = 0
        self.start()

    def start(self) -> None:
        world = World(self.clock.now, self.lines.append, lambda *_: None, lambda: 0.5)
        here = Place(PROJECT, B, "a-bucket", lambda: self.further)
        self.recovery = Recovery(here, FakeClient(lambda *sent: self.call(*sent)), world)

    def look(self) -> None:
        self.recovery.look(["q"], BUDGETS, "q", MINUTES)

    def looks(
        self, seconds: float, until: Callable[[], bool] = lambda: False, each: float = 30.0
    ) -> None:
        end = self.clock.now() + seconds
        while not until() and self.clock.now() < end:
            self.look()
            self.clock.advance(each)
            self.most = max(self.most, len(self.requests()))

    def requests(self) -> dict[str, Json]:
        """The requests by their zones."""
        found = self.cloud.cloud.store.items(QUEUED)
        return {name.split("/")[3]: record for name, record in found}

    def node(self) -> tuple[str, str]:
        """The zone and the state of the TPU."""
        for name, record in self.cloud.cloud.store.items(NODE_KIND):
            return name.split("/")[3], record["state"]
        return "", "gone"

    def ready_in(self, zone: str) -> Callable[[], bool]:
        return lambda: self.node() == (zone, "READY")

    def queue(self, zone: str, **node: Any) -> None:
        url = f"tpu.googleapis.com/v2alpha1/{place(zone)}/queuedResources"
        self.google.post(url, in_zone(body(**node), place(zone)), queuedResourceId="q")

    def remove(self) -> None:
        """Remove the request from the first zone."""
        url = f"tpu.googleapis.com/v2alpha1/{place(B)}/queuedResources/q"
        self.google.call("DELETE", url, force=True)
        self.clock.advance(120.0)
        assert self.requests() == {}

    def sold_out(self, *zones: str) -> None:
        self.cloud.cloud.store.put("setting", "stockout", {zone: ["*"] for zone in zones})

    def preempt(self) -> None:
        nodes.preempt(self.cloud.cloud, f"{place(self.node()[0])}/nodes/q")


@pytest.fixture
def stack(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Stack:
    """Its TPU is READY in the first zone."""
    url = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    query = {"uploadType": "media", "name": "agent/declaration.json"}
    text = json.dumps({"tpus": {"q": body()}})
    google.session.post(url, params=query, data=text, timeout=30).raise_for_status()
    stack = Stack(local_cloud, google, clock)
    stack.queue(B)
    stack.looks(900, until=stack.ready_in(B))
    assert stack.lines == []
    return stack


def remembered(stack: Stack) -> Json:
    url = "https://storage.googleapis.com/storage/v1/b/a-bucket/o/agent%2Fstate.json"
    found: Json = stack.google.session.get(url, params={"alt": "media"}, timeout=30).json()
    return found


def test_it_stays_in_its_zone_while_there_is_capacity(stack: Stack) -> None:
    stack.preempt()
    stack.looks(900, until=stack.ready_in(B))
    assert stack.ready_in(B)()


def test_what_waits_too_long_moves_on_and_its_machine_knows_its_zone(stack: Stack) -> None:
    stack.sold_out(B)
    stack.preempt()
    begun = stack.clock.now()
    stack.looks(3600, until=stack.ready_in(C))
    assert stack.ready_in(C)()
    assert stack.clock.now() - begun >= MINUTES * 60
    stack.looks(20)
    assert list(stack.requests()) == [C]
    assert stack.lines[1] == f"q is deleted and recreated: it waited in {B} for 15 minutes"
    spec = stack.requests()[C]["tpu"]["nodeSpec"][0]
    assert spec["parent"] == place(C)
    assert spec["node"]["metadata"]["tpu-zone"] == C
    assert stack.most == 1


@pytest.mark.parametrize("wrong", [-7200.0, 7200.0])
def test_how_long_it_waits_in_a_zone_does_not_depend_on_googles_clock(
    stack: Stack, wrong: float
) -> None:
    now = stack.clock.now
    world = World(lambda: now() + wrong, stack.lines.append, lambda *_: None, lambda: 0.5)
    here = Place(PROJECT, B, "a-bucket", lambda: stack.further)
    stack.recovery = Recovery(here, FakeClient(lambda *sent: stack.call(*sent)), world)
    stack.sold_out(B)
    stack.preempt()
    begun = now()
    stack.looks(3600, until=stack.ready_in(C))
    assert stack.ready_in(C)()
    assert MINUTES * 60 <= now() - begun <= MINUTES * 60 + 600


def test_from_the_last_zone_it_comes_back_to_the_first(stack: Stack) -> None:
    stack.sold_out(B, C)
    stack.preempt()
    stack.looks(7200, until=stack.ready_in(F))
    stack.looks(20)
    stack.sold_out(C, F)
    stack.preempt()
    stack.looks(7200, until=stack.ready_in(B))
    assert stack.ready_in(B)()
    assert stack.most == 1


def test_where_all_are_sold_out_it_goes_round_at_the_pace_of_the_stack(stack: Stack) -> None:
    call, made = stack.call, list[str]()

    def noted(method: str, url: str, sent: str | None) -> tuple[int, Json]:
        if method == "POST" and "queuedResourceId" in url:
            made.append(url.split("/locations/")[1].split("/")[0])
        return call(method, url, sent)

    stack.call = noted
    stack.sold_out(*ZONES)
    stack.preempt()
    stack.looks(4 * 3600, each=60.0)
    assert made[:5] == [B, C, F, B, C]
    assert 10 <= len(made) <= 16
    assert stack.most == 1
    assert {event["kind"] for event in remembered(stack)["events"]} == {"preemption", "shortage"}
    stack.sold_out()
    stack.looks(3600, until=lambda: stack.node()[1] == "READY")
    assert stack.node()[1] == "READY"


@pytest.mark.parametrize("code", [8, 429])
def test_a_zone_that_refuses_is_left_at_once_and_rounds_grow_slower(
    stack: Stack, code: int
) -> None:
    """A request may be refused, or its operation may fail."""
    call, tried = stack.call, list[float]()
    error = {"code": code, "message": 'There is no more capacity in the zone "Z"'}

    def refusing(method: str, url: str, sent: str | None) -> tuple[int, Json]:
        if method == "POST" and "queuedResourceId" in url:
            tried.append(stack.clock.now())
            return (
                (429, {"error": error})
                if code == 429
                else (200, {"name": f"{place(B)}/operations/o"})
            )
        if url.endswith("/operations/o"):
            return 200, {"done": True, "error": error}
        return call(method, url, sent)

    stack.call = refusing
    stack.preempt()
    stack.looks(600, each=10.0)
    stack.looks(7200, each=60.0)
    pauses = [after - before for before, after in pairwise(tried)]
    assert max(pauses[:2]) <= 40, "the first round is quick"
    assert min(pauses[15:]) >= 300, "later ones hammer nobody"
    assert f"q is not created yet in {C}: stock-out" in " ".join(stack.lines)
    stack.call = call
    stack.looks(3600, until=lambda: stack.node()[1] == "READY")
    assert len(stack.requests()) == 1


def test_a_request_that_google_fails_moves_on_to_the_next_zone_as_pulumi_up_does(
    stack: Stack,
) -> None:
    call = stack.call

    def failing(method: str, url: str, sent: str | None) -> tuple[int, Json]:
        status, answer = call(method, url, sent)
        if method == "GET" and f"/{B}/queuedResources/" in url and status == 200:
            error = {"code": 13, "message": "Internal error"}
            answer["state"] = {"state": "FAILED", "failedData": {"error": error}}
        return status, answer

    stack.call = failing
    stack.looks(1800, until=stack.ready_in(C))
    assert list(stack.requests()) == [C]
    assert stack.lines[0] == "q is deleted and recreated: it is FAILED (Internal error)"
    assert [event["kind"] for event in remembered(stack)["events"]] == ["failure"]


def test_a_refusal_that_every_zone_would_repeat_moves_nothing(stack: Stack) -> None:
    call, zones = stack.call, set[str]()

    def denying(method: str, url: str, sent: str | None) -> tuple[int, Json]:
        if method == "POST" and "queuedResourceId" in url:
            zones.add(url.split("/locations/")[1].split("/")[0])
            return 403, {"error": {"code": 403, "message": "Permission denied"}}
        return call(method, url, sent)

    stack.call = denying
    stack.preempt()
    stack.looks(3600, each=120.0)
    assert zones == {B}


def test_a_zone_that_google_hides_is_passed_over(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AI zone is hidden until somebody switches it on: it answers 403."""
    monkeypatch.setattr(api, "is_on", lambda cloud, zone: zone != C)
    stack.sold_out(B)
    stack.preempt()
    stack.looks(7200, until=stack.ready_in(F))
    assert stack.ready_in(F)()
    assert f"q is not created yet in {C}: zone (Location {C} is not found" in " ".join(stack.lines)
    found, status, _ = look_up(Place(PROJECT, B, "a-bucket", lambda: ZONES[1:]), stack.call, "q")
    assert (found.zone, status) == (F, 200)


def test_a_tpu_that_the_stack_has_moved_is_found_and_recreated_where_it_is(stack: Stack) -> None:
    stack.remove()
    stack.queue(F)
    stack.looks(900, until=stack.ready_in(F))
    stack.looks(20)
    stack.preempt()
    stack.looks(900, until=stack.ready_in(F))
    assert stack.ready_in(F)()
    assert stack.most == 1


def test_what_the_stack_makes_in_another_zone_meanwhile_wins(stack: Stack) -> None:
    stack.sold_out(B)
    stack.preempt()
    stack.looks(300)
    assert list(stack.requests()) == [B]
    stack.queue(F)
    stack.looks(600)
    assert list(stack.requests()) == [F]
    assert stack.lines[-1] == f"q is left to the stack, which created it in {F}"


def test_another_stacks_request_of_the_same_name_blocks_no_one(stack: Stack) -> None:
    stack.queue(C, labels={"tpu-stack-mark": "theirs"})
    stack.sold_out(B)
    stack.preempt()
    stack.looks(600)
    assert stack.requests()[C]["state"]["state"] != "SUSPENDED"
    stack.sold_out()
    stack.looks(900, until=lambda: stack.node()[1] == "READY" and B in stack.requests())
    assert set(stack.requests()) == {B, C}


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_call_leave_neither_a_second_request_nor_none(stack: Stack, seed: int) -> None:
    """Before or after a call has reached Google, while zones sell out by chance."""
    chance, call = random.Random(seed), stack.call

    kills = 0
    while kills < 20:
        stack.call = call
        stack.sold_out()
        stack.looks(1800, until=lambda: stack.node()[1] == "READY")
        stack.looks(20)
        stack.sold_out(*chance.sample(ZONES, 2))
        stack.preempt()
        stack.call = deadly(call, chance, 0.1)
        for _ in range(200):
            try:
                stack.looks(30)
            except Killed:
                kills += 1
                stack.start()
    stack.call = call
    stack.sold_out()
    stack.looks(3600, until=lambda: stack.node()[1] == "READY")
    stack.looks(20)
    assert stack.node()[1] == "READY"
    assert len(stack.requests()) == stack.most == 1


class MachineOfStack:
    """The metadata and the account of the machine that trains."""

    def __init__(self, stack: Stack) -> None:
        self.client = FakeClient(stack.call)

    def tpus(self) -> list[str]:
        return ["q"]


def test_the_tpu_of_the_trainer_of_jobs_and_of_limits_is_looked_up_where_it_is(
    stack: Stack, google: Client
) -> None:
    stack.sold_out(B)
    stack.preempt()
    stack.looks(3600, until=stack.ready_in(C))
    here = Place(PROJECT, B, "a-bucket", lambda: stack.further)
    machine: Any = MachineOfStack(stack)
    assert Keeper(machine, here, print).tpu_state().ending is None
    found = Tpus(here, "q", stack.call, lambda: None, is_here=False).ready()
    assert found is not None
    assert found.zone == C

    ledger = Ledger(stack.recovery._bucket, "j", stack.clock.now, print)
    said: list[str] = []
    client = FakeClient(stack.call)
    enforcer = LimitEnforcer(
        here, client, lambda: True, stack.clock.now, said.append, ledger=ledger
    )
    for _ in range(3):
        enforcer.look({"tpus": ["q"], "timeToLiveHours": 1})
    assert [event["state"] for event in ledger._events] == ["ready"], "it never was absent"
    stack.clock.advance(3600.0)
    assert enforcer.look({"tpus": ["q"], "timeToLiveHours": 1})
    stack.clock.advance(120.0)
    assert stack.requests() == {}


Provider = QueuedRequestProvider
ASKED: dict[str, Any] = {
    "project": PROJECT,
    "zone": B,
    "name": "q",
    "fallbackZones": [C, F],
    "zoneMinutes": 15.0,
    "request": body(),
    "queueing": {},
    "labels": MARK,
}


class Deployment:
    """`pulumi up`, `refresh` and `destroy` of the queue's resources, beside the agent."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        own, clock = client_of(session(stack.cloud)), stack.clock
        monkeypatch.setattr(request, "TpuApi", lambda: TpuApi(own, clock.now, clock.advance))
        self.state: dict[str, Any] = {}
        self.nodes: dict[str, Any] = {}
        stack.remove()

    def up(self, asked: dict[str, Any] = ASKED) -> None:
        """Make both resources."""
        self.state = Provider().create(asked).outs or {}
        waits = {key: asked[key] for key in ("project", "zone", "name", "fallbackZones")}
        waits |= {"requested": id_of(asked), "waitMinutes": 60.0, "at": self.state["at"]}
        self.waits = waits
        self.nodes = QueuedNodeProvider().create(waits).outs or {}

    def refresh(self) -> None:
        self.state = Provider().read("id", self.state).outs or {}
        self.nodes = QueuedNodeProvider().read("id", self.nodes).outs or {}

    def differs(self, asked: dict[str, Any] = ASKED) -> bool:
        diffs = (
            Provider().diff("id", self.state, asked),
            QueuedNodeProvider().diff("id", self.nodes, self.waits),
        )
        return any(diff.changes for diff in diffs)


@pytest.fixture
def deployment(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    return Deployment(stack, monkeypatch)


def test_an_update_moves_on_to_the_first_zone_that_has_capacity(
    deployment: Deployment, stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.sold_out(B, C)
    deployment.up()
    assert stack.ready_in(F)()
    assert list(stack.requests()) == [F]
    assert deployment.state["at"] == deployment.nodes["at"] == F
    assert not deployment.differs()
    said = capsys.readouterr().out
    assert f"q: it is still ACCEPTED after 15 minutes in {B}; trying the next zone" in said


def test_in_the_last_zone_a_request_waits_until_the_update_gives_up(
    deployment: Deployment, stack: Stack
) -> None:
    stack.sold_out(*ZONES)
    with pytest.raises(RuntimeError, match="It keeps its place in the queue"):
        deployment.up()
    assert list(stack.requests()) == [F]


def test_a_refresh_finds_the_tpu_where_the_agent_has_moved_it_and_nothing_differs(
    deployment: Deployment, stack: Stack
) -> None:
    deployment.up()
    stack.sold_out(B)
    stack.looks(60)
    stack.preempt()
    stack.looks(3600, until=stack.ready_in(C))
    stack.looks(60)
    assert not deployment.differs(), "also without a refresh"
    deployment.refresh()
    assert deployment.state["at"] == deployment.nodes["at"] == C
    assert not deployment.differs()


def test_a_list_without_the_tpus_zone_recreates_it_and_any_other_does_not(
    deployment: Deployment, stack: Stack
) -> None:
    stack.sold_out(B)
    deployment.up()
    wider = Provider().diff("id", deployment.state, ASKED | {"fallbackZones": [C]})
    assert (wider.changes, wider.replaces) == (True, [])
    updated = Provider().update("id", deployment.state, ASKED | {"fallbackZones": [C]}).outs
    assert updated is not None
    assert (updated["at"], updated["fallbackZones"]) == (C, [C])
    alone = {key: value for key, value in ASKED.items() if key != "fallbackZones"}
    for asked in (alone, ASKED | {"fallbackZones": [F]}):
        assert Provider().diff("id", deployment.state, asked).replaces == ["fallbackZones"]


def test_what_is_destroyed_is_gone_in_every_zone_also_by_a_state_of_before(
    deployment: Deployment, stack: Stack
) -> None:
    deployment.up()
    stack.sold_out(B)
    stack.looks(60)
    stack.preempt()
    stack.looks(3600, until=stack.ready_in(C))
    Provider().delete("id", deployment.state)
    assert stack.requests() == {}


def test_an_update_that_was_killed_on_its_way_is_taken_up_where_it_was(
    deployment: Deployment, stack: Stack
) -> None:
    stack.queue(C)
    deployment.up()
    assert list(stack.requests()) == [C]
    assert deployment.state["at"] == C


def test_what_the_agent_is_making_meanwhile_is_taken_over_in_any_zone(
    deployment: Deployment, stack: Stack
) -> None:
    deployment.up()
    stack.looks(60)
    stack.sold_out(B)
    stack.preempt()
    stack.looks(1200, until=lambda: list(stack.requests()) == [C])
    deployment.up()
    stack.looks(120)
    assert list(stack.requests()) == [C]
    assert stack.most == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"labels": {"tpu-stack-mark": "theirs"}}, None),
        ({"request": body(acceleratorType="v3-8")}, "already exists"),
    ],
)
def test_another_request_in_a_further_zone_is_never_taken_over(
    deployment: Deployment, stack: Stack, asked: dict[str, Any], said: str | None
) -> None:
    """One with another mark is a colleague's, one of another type is of another deployment."""
    stack.queue(C)
    if said is None:
        deployment.up(ASKED | asked)
        assert set(stack.requests()) == {B, C}
        Provider().delete("id", deployment.state)
    else:
        with pytest.raises(RuntimeError, match=f"locations/{C}/.* {said}"):
            deployment.up(ASKED | asked)
    assert set(stack.requests()) == {C}
