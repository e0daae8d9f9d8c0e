"""The program that keeps limits, against the local cloud in virtual time."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault
from localcloud.services.tpu import nodes
from localcloud.testing import Client
from tests.unit.agent.fake_google import FakeClient
from tpu_agent.limits import LimitEnforcer
from tpu_core.google import Call
from tpu_core.tpu import Place

from .conftest import PARENT, PROJECT, TPU, ZONE, caller, state

MINUTE, HOUR = 60.0, 3600.0
VM = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
POD = VM | {"acceleratorType": "v2-32"}
ONE = {"tpus": ["t"]}


class Watch:
    """The enforcer on a machine that trains or not, in virtual time."""

    def __init__(self, cloud: LocalCloud, clock: VirtualClock) -> None:
        self.clock = clock
        self.trains = False
        self.call: Call = caller(cloud)
        self.lines: list[str] = []
        self.enforcer = LimitEnforcer(
            Place(PROJECT, ZONE, "a-bucket"),
            FakeClient(lambda *sent: self.call(*sent)),
            lambda: self.trains,
            clock.now,
            self.lines.append,
        )

    def looks(self, limits: dict[str, Any], seconds: float) -> bool:
        """Look every minute for so long; whether the time was up."""
        over = False
        end = self.clock.now() + seconds
        while not over and self.clock.now() < end:
            self.clock.advance(MINUTE)
            over = self.enforcer.look(limits)
        return over


@pytest.fixture
def watch(local_cloud: LocalCloud, google: Client, clock: VirtualClock) -> Watch:
    return Watch(local_cloud, clock)


def notes(google: Client) -> list[str]:
    found = google.get("storage.googleapis.com/storage/v1/b/a-bucket/o", prefix="limits/")
    return [item["name"].partition("-")[2] for item in found.get("items", [])]


def test_a_tpu_is_stopped_once_nothing_has_trained_for_so_long(
    google: Client, watch: Watch
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    limits = ONE | {"idleMinutes": 30}
    watch.trains = True
    watch.looks(limits, 2 * HOUR)
    watch.trains = False
    watch.looks(limits, 29 * MINUTE)
    assert state(google) == "READY"
    watch.looks(limits, MINUTE)
    assert state(google) == "STOPPED"
    assert watch.lines == ["t is stopped: it was idle for 30 minutes"]
    assert notes(google) == ["t.txt"]
    watch.looks(limits, 2 * HOUR)
    assert len(watch.lines) == 1
    # Another job, and another end.
    watch.enforcer.wake(limits)
    watch.looks(limits, HOUR)
    assert (state(google), len(watch.lines)) == ("STOPPED", 3)


@pytest.mark.parametrize(
    ("given", "asked", "minutes"),
    [(None, 20, 20), (30, 20, 20), (30, 60, 30), (30, 0, 30), (30, "soon", 30)],
)
def test_the_last_job_may_ask_for_a_shorter_time(
    google: Client, watch: Watch, given: int | None, asked: object, minutes: int
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    upload = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    wish = json.dumps({"minutes": asked})
    watch.call("POST", f"{upload}?uploadType=media&name=idle-stop.json", wish)
    limits = ONE | ({"idleMinutes": given} if given else {})
    watch.looks(limits, (minutes - 1) * MINUTE)
    assert state(google) == "READY"
    watch.looks(limits, MINUTE)
    assert state(google) == "STOPPED"
    assert watch.lines == [f"t is stopped: it was idle for {minutes} minutes"]


def test_the_stacks_own_time_counts_while_the_bucket_tells_no_other(
    google: Client, watch: Watch, local_cloud: LocalCloud
) -> None:
    """With its key off, a bucket still lists what it has."""
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    local_cloud.cloud.faults.add(Fault("storage.objects.get", status=403))
    watch.looks(ONE | {"idleMinutes": 30}, 30 * MINUTE)
    assert state(google) == "STOPPED"


def test_a_clock_that_was_wrong_puts_no_end_off(
    google: Client, watch: Watch, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    watch.trains, now = True, watch.enforcer._now
    monkeypatch.setattr(watch.enforcer, "_now", lambda: now() + 1000 * HOUR)
    watch.enforcer.look(ONE | {"idleMinutes": 30})
    watch.trains = False
    monkeypatch.setattr(watch.enforcer, "_now", now)
    watch.looks(ONE | {"idleMinutes": 30}, 31 * MINUTE)
    assert state(google) == "STOPPED"


def test_what_the_machine_itself_says_may_be_less_than_a_minute(
    google: Client, watch: Watch
) -> None:
    """The stack's settings allow no such limit, the machine's metadata do."""
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    watch.looks(ONE | {"idleMinutes": 0.01}, MINUTE)
    assert state(google) == "STOPPED"


def test_a_stopped_tpu_is_started_for_the_next_job(google: Client, watch: Watch) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    google.post(f"{TPU}/nodes/t:stop", {})
    watch.enforcer.wake(ONE)
    assert state(google) == "READY"


def test_whoever_trains_elsewhere_is_seen_by_what_a_job_writes(
    google: Client, watch: Watch, clock: VirtualClock
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    limits = ONE | {"idleMinutes": 30}
    watch.looks(limits, 20 * MINUTE)
    upload = "https://storage.googleapis.com/upload/storage/v1/b/a-bucket/o"
    watch.call("POST", f"{upload}?uploadType=media&name=jobs/by-hand/ckpt-1", "x")
    watch.looks(limits, 29 * MINUTE)
    assert state(google) == "READY"
    watch.looks(limits, 2 * MINUTE)
    assert state(google) == "STOPPED"


@pytest.mark.parametrize("what", ["a slice of several hosts", "one out of the queue"])
def test_what_google_does_not_stop_is_deleted(google: Client, watch: Watch, what: str) -> None:
    if what == "one out of the queue":
        spec = {"parent": PARENT, "nodeId": "t", "node": VM}
        request = {"tpu": {"nodeSpec": [spec]}}
        google.post(f"{TPU}/queuedResources", request, queuedResourceId="t")
        zone = PARENT
    else:
        zone = PARENT.replace(ZONE, "us-central1-a")
        google.post(f"tpu.googleapis.com/v2/{zone}/nodes", POD, nodeId="t")
        watch.enforcer._place = Place(PROJECT, "us-central1-a", "a-bucket")
    watch.looks(ONE | {"idleMinutes": 10}, 10 * MINUTE)
    google.get(f"tpu.googleapis.com/v2/{zone}/nodes/t", status=404)
    google.get(f"tpu.googleapis.com/v2/{zone}/queuedResources/t", status=404)
    assert "t is deleted" in watch.lines[0]


def test_a_classic_node_is_stopped_by_the_version_of_the_api_that_knows_it(
    google: Client, watch: Watch, local_cloud: LocalCloud
) -> None:
    local_cloud.cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
    node = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1", "network": "default"}
    google.post(f"tpu.googleapis.com/v1/{PARENT}/nodes", node, nodeId="t")
    watch.looks(ONE | {"idleMinutes": 10}, 10 * MINUTE)
    assert state(google) == "STOPPED"


def test_a_tpu_that_google_took_away_is_not_idle(
    google: Client, watch: Watch, local_cloud: LocalCloud
) -> None:
    spot = VM | {"schedulingConfig": {"spot": True}}
    google.post(f"{TPU}/nodes", spot, nodeId="t")
    limits = ONE | {"idleMinutes": 30}
    watch.looks(limits, 20 * MINUTE)
    nodes.preempt(local_cloud.cloud, f"{PARENT}/nodes/t")
    watch.looks(limits, 3 * HOUR)
    assert (state(google), watch.lines) == ("PREEMPTED", [])
    google.delete(f"{TPU}/nodes/t")
    google.post(f"{TPU}/nodes", spot, nodeId="t")
    watch.looks(limits, 29 * MINUTE)
    assert state(google) == "READY"


def test_a_tpu_whose_time_is_up_is_deleted_even_while_it_trains(
    google: Client, watch: Watch
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    limits = ONE | {"timeToLiveHours": 8.0, "idleMinutes": 30}
    watch.trains = True
    assert not watch.looks(limits, 8 * HOUR - MINUTE)
    assert watch.looks(limits, MINUTE)
    assert state(google) == "gone"
    assert watch.lines == ["t is deleted: its 8 hours are over"]
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    assert not watch.looks(limits, 7 * HOUR)


def test_slices_go_together(google: Client, watch: Watch) -> None:
    specs = [{"parent": PARENT, "nodeId": f"t-{index}", "node": VM} for index in range(2)]
    google.post(f"{TPU}/queuedResources", {"tpu": {"nodeSpec": specs}}, queuedResourceId="t")
    watch.looks({"tpus": ["t-0", "t-1"], "timeToLiveHours": 1.0}, HOUR)
    assert (state(google, "t-0"), state(google, "t-1")) == ("gone", "gone")
    google.get(f"{TPU}/queuedResources/t", status=404)


def test_without_a_limit_nothing_is_touched(google: Client, watch: Watch) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    watch.looks(ONE, 24 * HOUR)
    assert state(google) == "READY"


def test_a_refusal_is_told_and_nothing_is_taken_for_done(google: Client, watch: Watch) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    watch.call = lambda *_: (403, {"error": {"message": "you may not"}})
    with pytest.raises(OSError, match="HTTP status 403 for t: you may not"):
        watch.enforcer.look(ONE | {"timeToLiveHours": 1.0})


SLICES: dict[str, Any] = {"tpus": ["t-0", "t-1", "t-2"], "timeToLiveHours": 1.0}


def refused(watch: Watch, name: str, method: str = "DELETE", status: int = 409) -> None:
    """Google refuses every such call on this TPU from now on."""
    call = watch.call

    def refusing(sent: str, url: str, body: str | None) -> tuple[int, Any]:
        if sent == method and url.endswith(f"/{name}"):
            return status, {"error": {"message": "an operation is under way"}}
        return call(sent, url, body)

    watch.call = refusing


@pytest.mark.parametrize("method", ["DELETE", "GET"])
def test_what_google_refuses_for_one_tpu_keeps_none_of_the_others(
    google: Client, watch: Watch, clock: VirtualClock, method: str
) -> None:
    for name in SLICES["tpus"]:
        google.post(f"{TPU}/nodes", VM, nodeId=name)
    call = watch.call
    refused(watch, "t-0", method, 409 if method == "DELETE" else 500)
    clock.advance(HOUR)
    with pytest.raises(OSError, match="t-0"):
        watch.enforcer.look(SLICES)
    assert [state(google, name) for name in SLICES["tpus"]] == ["READY", "gone", "gone"]
    watch.call = call
    assert watch.enforcer.look(SLICES)
    assert state(google, "t-0") == "gone"


def test_people_are_told_once_that_a_deletion_is_refused_and_once_that_it_was_done(
    google: Client, watch: Watch, clock: VirtualClock
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    told = list[str]()
    watch.enforcer._tell = told.append
    call, limits = watch.call, ONE | {"timeToLiveHours": 1.0}
    refused(watch, "t")
    clock.advance(HOUR)
    for _ in range(20):
        clock.advance(MINUTE)
        with pytest.raises(OSError, match="HTTP status 409"):
            watch.enforcer.look(limits)
    assert [each.partition(" (")[0] for each in told] == ["t could not be deleted"]
    watch.call = call
    watch.enforcer.look(limits)
    assert told[1:] == ["t is deleted: its 1 hours are over"]
    assert len(notes(google)) == 2


@pytest.mark.parametrize("lost", ["tpu.projects.locations.nodes.delete", "storage.objects.insert"])
def test_a_deletion_counts_though_its_answer_is_lost(
    google: Client, watch: Watch, local_cloud: LocalCloud, clock: VirtualClock, lost: str
) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    local_cloud.cloud.faults.add(Fault(lost, status=0, carried_out=True, count=1))
    clock.advance(HOUR)
    ended = False
    for _ in range(2):
        with contextlib.suppress(OSError):
            ended = ended or watch.enforcer.look(ONE | {"timeToLiveHours": 1.0})
    assert (state(google), ended) == ("gone", True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_list_of_what_jobs_have_written_holds_no_limit_up(
    google: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A log is an object a second: a round looks at a part of them."""
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    monkeypatch.setattr("tpu_agent.limits._AT_ONCE", 4)
    call, pages = watch.call, 0

    def paged(method: str, url: str, body: str | None) -> tuple[int, Any]:
        nonlocal pages
        if "prefix=jobs" not in url:
            return call(method, url, body)
        pages += 1
        if fails and pages == 3:
            return 503, {}
        items = [{"name": "jobs/a/b", "generation": "1", "updated": "2020-01-01T00:00:00Z"}] * 2
        return 200, {"items": items} if "pageToken=9" in url else {
            "items": items,
            "nextPageToken": str(int(url.partition("pageToken=")[2] or 0) + 1),
        }

    watch.call = paged
    limits, rounds = ONE | {"idleMinutes": 30}, 0
    watch.looks(limits, 29 * MINUTE)
    assert pages == 0
    while state(google) == "READY" and rounds < 30:
        before, rounds = pages, rounds + 1
        with contextlib.suppress(OSError):
            watch.looks(limits, MINUTE)
        assert pages - before <= 3
    assert 5 <= rounds < 30


def test_the_list_ends_at_the_first_sign_of_life(google: Client, watch: Watch) -> None:
    google.post(f"{TPU}/nodes", VM, nodeId="t")
    call, pages = watch.call, 0

    def endless(method: str, url: str, body: str | None) -> tuple[int, Any]:
        nonlocal pages
        if "prefix=jobs" not in url:
            return call(method, url, body)
        pages += 1
        moment = "2020-01-01T00:00:00Z" if pages < 3 else "2099-01-01T00:00:00Z"
        return 200, {
            "items": [{"name": "jobs/a/b", "generation": "1", "updated": moment}],
            "nextPageToken": "x",
        }

    watch.call = endless
    watch.looks(ONE | {"idleMinutes": 30}, HOUR)
    assert (pages, state(google)) == (3, "READY")


def test_what_idles_is_deleted_though_the_bucket_never_takes_the_note(
    google: Client, watch: Watch, clock: VirtualClock
) -> None:
    spec = {"parent": PARENT, "nodeId": "t", "node": VM}
    google.post(f"{TPU}/queuedResources", {"tpu": {"nodeSpec": [spec]}}, queuedResourceId="t")

    def fails() -> None:
        raise OSError("the key is off")

    watch.enforcer._sleep = fails
    limits = ONE | {"idleMinutes": 10}
    clock.advance(10 * MINUTE)
    with pytest.raises(OSError, match="the key is off"):
        watch.enforcer.look(limits)
    assert state(google) == "READY"
    clock.advance(10 * MINUTE)
    watch.enforcer.look(limits)
    assert state(google) == "gone"
