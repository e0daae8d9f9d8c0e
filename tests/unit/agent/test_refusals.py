"""Whatever Google refuses, the agent calls it by its name and does what helps against it.

The agent's own code on virtual time; Google is a few lines that refuse, by answer or by operation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.unit.agent.fake_google import FakeClient
from tpu_agent.recovery import Recovery, World
from tpu_core.causes import cause_of
from tpu_core.google import Json
from tpu_core.tpu import Place

B, C = "us-central1-b", "us-central1-c"
LABELS = {"tpu-stack-mark": "abc"}
NODE = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt", "labels": LABELS}
REQUEST = {"tpu": {"nodeSpec": [{"parent": f"projects/p/locations/{B}", "node": NODE}]}}
BUDGETS = {"preemption": 48, "failure": 10}
LONGEST = 600.0
HOUR = 3600.0


@dataclass(frozen=True)
class Refusal:
    """What Google says, what it is, and what helps.

    Attributes:
        cause: the agent's name for it.
        code: the HTTP status, and that of an operation's error.
        said: Google's words.
        cure: the end of what a person is told; empty where waiting helps.
        moves: whether another zone is tried, if there is one.
        reason: of the error's details.
    """

    cause: str
    code: tuple[int, int]
    said: str
    cure: str = ""
    moves: bool = False
    reason: str = ""

    def error(self, code: int) -> Json:
        details = [{"reason": self.reason, "domain": "googleapis.com"}] if self.reason else []
        return {"code": code, "message": self.said, "details": details}


PULUMI_UP = "run `pulumi up`"
REFUSALS = (
    Refusal(
        "stock-out",
        (429, 8),
        'There is no more capacity in the zone "us-central1-b"',
        moves=True,
    ),
    # marin-community/marin, pull 1612.
    Refusal(
        "quota",
        (429, 8),
        "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0",
        "request more from Google, or delete what uses it",
        moves=True,
    ),
    # marin-community/marin, pull 6198: no quota of TPUs, and the same in each zone.
    Refusal(
        "too many calls",
        (429, 8),
        "Quota limit 'Maximum number of CreateNode requests per minute' has been exceeded",
    ),
    Refusal("too many calls", (429, 8), "Quota exceeded", reason="RATE_LIMIT_EXCEEDED"),
    Refusal(
        "permission",
        (403, 7),
        "Permission 'tpu.nodes.create' denied on 'projects/p/locations/us-central1-b'",
        f"{PULUMI_UP}, which grants the agent's roles",
    ),
    Refusal(
        "zone",
        (403, 7),
        "Location us-central1-ai1a is not found or access is unauthorized.",
        f"remove the zone from the stack and {PULUMI_UP}",
        moves=True,
    ),
    Refusal(
        "disabled API",
        (403, 7),
        "Cloud TPU API has not been used in project 1 before or it is disabled.",
        "run `gcloud services enable tpu.googleapis.com`",
    ),
    Refusal(
        "disabled API",
        (403, 7),
        "The caller does not have permission",
        "run `gcloud services enable tpu.googleapis.com`",
        reason="SERVICE_DISABLED",
    ),
    # tensorflow/tpu, issue 877, says so of TensorflowVersion.
    Refusal(
        "version",
        (400, 3),
        'Cloud TPU received an invalid argument. The field "RuntimeVersion" cannot be "x".',
        "that `tpustack check --live` finds, and run `pulumi up`",
        moves=True,
    ),
    Refusal(
        "invalid",
        (400, 3),
        "Cloud TPU received an invalid AcceleratorType",
        f"correct the stack file and {PULUMI_UP}",
        moves=True,
    ),
    Refusal(
        "invalid",
        (404, 5),
        "Location us-central1-b is not found",
        f"correct the stack file and {PULUMI_UP}",
        moves=True,
    ),
    Refusal("credentials", (401, 16), "Request had invalid authentication credentials"),
    Refusal("unavailable", (503, 14), "The service is currently unavailable"),
)
IDS = [f"{refusal.cause}-{number}" for number, refusal in enumerate(REFUSALS)]


class Google:
    """A lost TPU, or a request for one, which it deletes at once and then refuses to make."""

    def __init__(self, body: Json, refusal: Refusal, how: str) -> None:
        self.refusal, self.how = refusal, how
        self.now, self.lost, self.number = 0.0, True, 0
        self.objects: dict[str, str] = {"declaration": json.dumps({"tpus": {"t": body}})}
        self.posts: list[tuple[float, str]] = []

    def __call__(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        if "storage.googleapis.com" in url:
            return self._bucket(method, url, body)
        zone = url.split("/locations/")[1].split("/")[0]
        if method == "POST":
            return self._create(zone)
        if "/operations/" in url:
            code = self.refusal.code[1]
            return 200, {"done": True, "error": self._error(code)}
        if method == "DELETE":
            self.lost = False
            return 200, {}
        lost = self.lost and zone == B
        return (200, self._lost(url)) if lost else (404, {})

    def _bucket(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        name = "declaration" if "declaration" in url else "state"
        if method == "POST":
            self.objects[name] = body or ""
            return 200, {}
        return (200, json.loads(self.objects[name])) if name in self.objects else (404, {})

    def _create(self, zone: str) -> tuple[int, Json]:
        self.posts.append((self.now, zone))
        if self.how == "operation":
            return 200, {"name": f"projects/p/locations/{zone}/operations/o"}
        return self.refusal.code[0], {"error": self._error(self.refusal.code[0])}

    def _error(self, code: int) -> Json:
        """Each answer has a number of its own."""
        self.number += 1
        error = self.refusal.error(code)
        return {**error, "message": f"{error['message']} [EID: 0x{self.number:016x}]"}

    def _lost(self, url: str) -> Json:
        made = {"name": url, "createTime": "2026-11-23T08:00:00Z", "labels": LABELS}
        if "/queuedResources/" in url:
            return {**made, **REQUEST, "state": {"state": "SUSPENDED"}}
        return {**made, "state": "PREEMPTED"}


def looks(google: Google, zones: Sequence[str], seconds: float) -> list[str]:
    """What the agent says in so long."""
    lines: list[str] = []
    world = World(lambda: google.now, lines.append, lambda *_: None, lambda: 1.0)
    recovery = Recovery(Place("p", B, "b", lambda: zones[1:]), FakeClient(google), world)
    request = None if len(zones) == 1 else "t"
    while google.now < seconds:
        recovery.look(["t"], BUDGETS, request, 15.0)
        google.now += 10.0
    return lines


@pytest.mark.parametrize("how", ["answer", "operation"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=IDS)
def test_a_refusal_is_told_once_by_its_name_and_tried_again_with_pauses_that_grow(
    refusal: Refusal, how: str
) -> None:
    google = Google(NODE, refusal, how)
    lines = looks(google, [B], 6 * HOUR)
    assert lines[1:] == [f"t is not created yet: {cause_of(*_answer(refusal))}"]
    assert lines[1].startswith(f"t is not created yet: {refusal.cause} ({refusal.said}")
    assert lines[1].endswith(refusal.cure)
    pauses = [after - before for (before, _), (after, _) in pairwise(google.posts)]
    assert all(before <= after + 20 for before, after in pairwise(pauses)), "they grow"
    assert LONGEST <= pauses[-1] <= LONGEST + 30, "it goes on, and hammers nobody"
    helpless = refusal.cause in ("zone", "version", "invalid")
    assert (pauses[0] >= LONGEST) == helpless, "what a person has to mend needs no hurry"


def _answer(refusal: Refusal) -> tuple[int, Json]:
    return refusal.code[0], {"error": refusal.error(refusal.code[0])}


@pytest.mark.parametrize("how", ["answer", "operation"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=IDS)
def test_another_zone_is_tried_for_what_it_may_have_and_for_nothing_else(
    refusal: Refusal, how: str
) -> None:
    google = Google(REQUEST, refusal, how)
    lines = looks(google, [B, C], HOUR)
    zones = [zone for _, zone in google.posts]
    assert zones[:4] == ([B, C, B, C] if refusal.moves else [B, B, B, B])
    first, second = (at for at, _ in google.posts[:2])
    assert second - first <= 60, "the first round is quick"
    assert google.posts[-1][0] - google.posts[-2][0] >= 300, "later ones are slow"
    assert f"t is not created yet in {B}: {refusal.cause} (" in lines[1]


def test_what_google_gives_in_the_end_is_taken() -> None:
    google = Google(NODE, REFUSALS[0], "answer")
    looks(google, [B], HOUR)
    made = {**NODE, "name": "t", "state": "READY", "createTime": "2026-11-23T09:00:00Z"}
    state = json.loads(google.objects["state"])
    assert state["remaking"]["t"]["cause"].startswith("stock-out")
    lines: list[str] = []
    world = World(lambda: google.now, lines.append, lambda *_: None, lambda: 1.0)

    def ready(method: str, url: str, body: str | None) -> tuple[int, Json]:
        return google(method, url, body) if "storage" in url else (200, made)

    Recovery(Place("p", B, "b"), FakeClient(ready), world).look(["t"], BUDGETS)
    assert lines == [f"t is back after {HOUR:.0f} s"]


@pytest.mark.parametrize(
    "refusal", [one for one in REFUSALS if one.code[0] != 404 and one.cause != "zone"]
)
def test_a_look_that_is_refused_says_why_and_what_helps(refusal: Refusal) -> None:
    """With the API off, or without its role, the agent does not even learn what is there."""
    status = refusal.code[0]

    def refused(method: str, url: str, body: str | None) -> tuple[int, Json]:
        return status, {"error": refusal.error(status)}

    world = World(lambda: 0.0, lambda _: None, lambda *_: None, lambda: 1.0)
    with pytest.raises(OSError, match=f"HTTP status {status} for t: {refusal.cause} ") as raised:
        Recovery(Place("p", B, "b"), FakeClient(refused), world).look(["t"], BUDGETS)
    assert str(raised.value).endswith(refusal.cure)
