"""The queue's two resources against a Google in memory, in virtual time."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import requests
from pulumi.dynamic.dynamic import serialize_provider
from pulumi.runtime import rpc

from tpu_infra.credentials import client_of
from tpu_infra.resources import request as request_module
from tpu_infra.resources.provider import UnknownProviderError, provider_of
from tpu_infra.resources.request import QueuedNodeProvider, QueuedRequestProvider, TpuApi, body_of
from tpu_infra.resources.vertex import VertexJobsProvider
from tpu_infra.rest import ApiError

PLACE = "projects/some-project/locations/us-central1-b"
ENTRY = f"{PLACE}/queuedResources/a-tpu"
NODE = f"{PLACE}/nodes/a-tpu"
SPEC = {
    "nodeId": "a-tpu",
    "node": {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"},
}
WHERE = {"project": "some-project", "zone": "us-central1-b", "name": "a-tpu"}
ASKED: dict[str, Any] = {
    **WHERE,
    "request": {"tpu": {"nodeSpec": [SPEC]}, "spot": {}},
    "queueing": {"validUntilTime": "2027-01-31T17:00:00Z"},
    "labels": {"team": "vision"},
}
WAITED_FOR: dict[str, Any] = {**WHERE, "requested": ENTRY, "waitMinutes": 90}
SLICES: dict[str, Any] = {
    **ASKED,
    "request": {
        "tpu": {
            "nodeSpec": [
                # The engine knows no whole numbers.
                {
                    "multiNodeParams": {"nodeIdPrefix": "a-tpu", "nodeCount": 2.0},
                    "node": SPEC["node"],
                }
            ]
        }
    },
}
SLICES_WAITED_FOR = {**WAITED_FOR, "nodes": ["a-tpu-0", "a-tpu-1"]}
ENDPOINTS = [{"ipAddress": f"10.10.0.{host}", "port": 8470} for host in (2, 3)]


class Google(requests.Session):
    """Answers for one place: what is under a name, and refusals that come first."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, dict[str, Any]] = {}
        self.refusals: list[tuple[int, str, str]] = []
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.now = 0.0
        self.later: list[tuple[float, Callable[[], None]]] = []

    def at(self, moment: float, action: Callable[[], None]) -> None:
        self.later.append((moment, action))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [item for item in self.later if item[0] <= self.now]
        self.later = [item for item in self.later if item[0] > self.now]
        for _, action in due:
            action()

    def puts(self, state: str, **data: Any) -> None:
        now = {"state": {"state": state, **data}, "createTime": "then", "tpu": {"nodeSpec": [SPEC]}}
        self.there[ENTRY] = now

    def serves(self, state: str = "READY") -> None:
        self.puts("ACTIVE")
        self.there[NODE] = {"name": NODE, "state": state, "networkEndpoints": ENDPOINTS}

    def serves_slices(self, *states: str) -> None:
        self.puts("ACTIVE")
        for number, state in enumerate(states):
            name = f"{NODE}-{number}"
            endpoint = {"ipAddress": f"10.10.{number}.2", "port": 8470}
            self.there[name] = {"name": name, "state": state, "networkEndpoints": [endpoint]}

    def request(self, method: str, url: str, **given: Any) -> requests.Response:  # type: ignore[override]
        path, _, query = url.removeprefix("https://tpu.googleapis.com/v2alpha1/").partition("?")
        name, params = path, dict(parse_qsl(query))
        body: Any = json.loads(given["data"]) if given["data"] else None
        self.calls.append((method, name, params, body))
        if self.refusals:
            return answer(*self.refusals.pop(0))
        if method == "POST":
            if ENTRY in self.there:
                return answer(409, "ALREADY_EXISTS", "it exists")
            self.puts("ACCEPTED")
            self.there[ENTRY]["tpu"] = body["tpu"]
        elif method == "DELETE":
            self.there.clear()
        elif method == "GET" and name == f"{PLACE}/nodes":
            return self.page(params.get("pageToken"))
        elif method == "GET" and name not in self.there:
            return answer(404, "NOT_FOUND", "not found")
        return answer(200, body={"name": "op", "done": True, **self.there.get(name, {})})

    def page(self, token: str | None) -> requests.Response:
        """The TPU VMs that are there, one a page, last first."""
        names = sorted((name for name in self.there if "/nodes/" in name), reverse=True)
        number = int(token or 0)
        more = {"nextPageToken": str(number + 1)} if number + 1 < len(names) else {}
        return answer(
            200, body={"nodes": [self.there[name] for name in names[number:][:1]], **more}
        )


def answer(
    status: int, reason: str = "", message: str = "", body: dict[str, Any] | None = None
) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    error = {"error": {"status": reason, "message": message}}
    response._content = json.dumps(error if body is None else body).encode()
    return response


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Google:
    google = Google()

    def api() -> TpuApi:
        return TpuApi(client_of(google), lambda: google.now, google.sleep)

    monkeypatch.setattr(request_module, "TpuApi", api)
    return google


def test_a_request_is_put_into_the_queue_with_its_tier_deadline_and_labels(google: Google) -> None:
    made = QueuedRequestProvider().create(ASKED)
    assert (made.id, made.outs) == (ENTRY, {**ASKED, "loss": ""})
    (_, name, query, body), *_ = google.calls
    assert (name, query["queuedResourceId"]) == (f"{PLACE}/queuedResources", "a-tpu")
    assert body["spot"] == {}
    assert body["queueingPolicy"] == ASKED["queueing"]
    assert body["tpu"]["nodeSpec"][0]["node"]["labels"] == {"team": "vision"}


def test_a_request_that_is_there_already_is_left_alone_even_if_it_asks_for_the_same(
    google: Google,
) -> None:
    google.serves()
    with pytest.raises(RuntimeError, match=r"already exists, .* `owner` .* `tpustack recover`"):
        QueuedRequestProvider().create(ASKED)
    assert {method for method, *_ in google.calls} <= {"POST", "GET"}


def marked(mark: str) -> dict[str, Any]:
    return {**ASKED, "labels": {"tpu-stack-mark": mark}}


@pytest.mark.parametrize(
    ("mark", "accelerator", "taken_over"),
    [("ours", "the same", True), ("theirs", "the same", False), ("ours", "v3-8", False)],
)
def test_only_what_the_agent_queued_again_meanwhile_is_taken_over(
    google: Google, mark: str, accelerator: str, taken_over: bool
) -> None:
    google.serves()
    body = body_of(marked(mark))
    if accelerator != "the same":
        body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] = accelerator
    google.there[ENTRY] |= {**body, "more": "that Google adds"}
    if taken_over:
        made = QueuedRequestProvider().create(marked("ours"))
        assert (made.id, made.outs) == (ENTRY, {**marked("ours"), "loss": ""})
    else:
        with pytest.raises(RuntimeError, match="already exists"):
            QueuedRequestProvider().create(marked("ours"))
    assert {method for method, *_ in google.calls} <= {"POST", "GET"}


def test_a_request_whose_answer_was_lost_is_repeated_under_its_number(google: Google) -> None:
    """Google then answers with the operation of the first call, and makes no second request."""
    google.refusals = [(503, "UNAVAILABLE", "the answer was lost")]
    QueuedRequestProvider().create(ASKED)
    QueuedRequestProvider().read(ENTRY, ASKED)
    numbers = [query["requestId"] for method, _, query, _ in google.calls if method == "POST"]
    assert len(numbers) == 2
    assert len(set(numbers)) == 1


def test_a_refresh_of_a_request_that_waits_tells_whose_it_is(google: Google) -> None:
    google.puts("WAITING_FOR_RESOURCES")
    node = {**SPEC["node"], "labels": {"team": "theirs"}}  # type: ignore[dict-item]
    google.there[ENTRY]["tpu"] = {"nodeSpec": [{**SPEC, "node": node}]}
    outs = QueuedRequestProvider().read(ENTRY, ASKED).outs
    assert outs is not None
    assert outs["labels"] == {"team": "theirs"}


def test_a_tpu_vm_of_the_same_name_that_did_not_queue_is_named_with_its_cure(
    google: Google,
) -> None:
    google.refusals = [(409, "ALREADY_EXISTS", "it exists")]
    with pytest.raises(RuntimeError, match=r"a-tpu already exists as a TPU VM .*`pulumi destroy"):
        QueuedRequestProvider().create(ASKED)


def test_what_passes_is_tried_again_and_a_refusal_is_not(google: Google) -> None:
    google.refusals = [(503, "UNAVAILABLE", "later"), (429, "", "slower")]
    QueuedRequestProvider().create(ASKED)
    google.there.clear()
    google.calls.clear()
    google.refusals = [(403, "PERMISSION_DENIED", "you may not")]
    with pytest.raises(RuntimeError, match=r"Google does not queue a-tpu: you may not \(HTTP 403"):
        QueuedRequestProvider().create(ASKED)
    assert len(google.calls) == 1


def test_a_service_that_stays_away_is_an_error_in_the_end(google: Google) -> None:
    google.refusals = [(503, "UNAVAILABLE", "later")] * 100
    with pytest.raises(ApiError, match="later"):
        QueuedRequestProvider().read(ENTRY, ASKED)
    assert google.now < 60


def test_nothing_changes_where_nothing_is_changed(google: Google) -> None:
    google.serves()
    stored = {**ASKED, "loss": ""}
    assert not QueuedRequestProvider().diff(ENTRY, stored, ASKED).changes


@pytest.mark.parametrize(
    ("stored", "wanted", "replaces"),
    [
        ({"loss": "SUSPENDED"}, {}, ["loss"]),
        ({}, {"request": {"tpu": {"nodeSpec": [SPEC]}}}, ["request"]),
        ({}, {"labels": {}}, []),
        ({}, {"queueing": {}}, []),
    ],
)
def test_a_request_is_replaced_only_where_it_must_be(
    google: Google, stored: dict[str, Any], wanted: dict[str, Any], replaces: list[str]
) -> None:
    google.serves()
    diff = QueuedRequestProvider().diff(ENTRY, {**ASKED, **stored}, {**ASKED, **wanted})
    assert (diff.changes, diff.replaces, diff.delete_before_replace) == (True, replaces, True)


@pytest.mark.parametrize(
    ("becomes", "why"),
    [
        (lambda google: google.serves("PREEMPTED"), "its TPU VM is PREEMPTED"),
        (lambda google: google.puts("SUSPENDED"), "SUSPENDED"),
        (lambda google: google.there.clear(), "it was deleted"),
    ],
)
def test_a_request_is_replaced_without_a_refresh_once_google_has_taken_its_tpu(
    google: Google,
    capsys: pytest.CaptureFixture[str],
    becomes: Callable[[Google], None],
    why: str,
) -> None:
    stored = {**ASKED, "loss": ""}
    google.serves()
    assert not QueuedRequestProvider().diff(ENTRY, stored, ASKED).changes
    becomes(google)
    assert QueuedRequestProvider().diff(ENTRY, stored, ASKED).replaces == ["loss"]
    assert f"a-tpu: Google will not fulfill it ({why})" in capsys.readouterr().out


def test_a_preview_works_without_permission_to_read_the_queue(google: Google) -> None:
    google.refusals = [(403, "PERMISSION_DENIED", "you may not")]
    stored = {**ASKED, "loss": ""}
    assert not QueuedRequestProvider().diff(ENTRY, stored, ASKED).changes


def test_another_start_up_script_or_price_is_no_other_request(google: Google) -> None:
    google.serves()

    def asks(script: str) -> dict[str, Any]:
        keys = ("startup-script", "tensorflow-lock", "limits", "messages")
        node = SPEC["node"] | {"metadata": dict.fromkeys(keys, script)}  # type: ignore[operator]
        return {**ASKED, "request": {"tpu": {"nodeSpec": [{**SPEC, "node": node}]}}}

    assert (
        not QueuedRequestProvider().diff(ENTRY, asks("of one release"), asks("of the next")).changes
    )


def test_a_refresh_sees_a_request_that_is_gone(google: Google) -> None:
    assert QueuedRequestProvider().read(ENTRY, ASKED).id == ""


@pytest.mark.parametrize(
    ("state", "node", "loss"),
    [
        ("ACTIVE", "READY", ""),
        ("WAITING_FOR_RESOURCES", None, ""),
        ("SUSPENDED", "PREEMPTED", "SUSPENDED"),
        ("ACTIVE", "TERMINATED", "its TPU VM is TERMINATED"),
        ("ACTIVE", None, "its TPU VM is gone"),
    ],
)
def test_a_refresh_sees_what_became_of_a_request(
    google: Google, state: str, node: str | None, loss: str
) -> None:
    google.puts(state)
    if node:
        google.there[NODE] = {"state": node, "labels": {"team": "vision"}}
    outs = QueuedRequestProvider().read(ENTRY, ASKED).outs
    assert outs == {**ASKED, "loss": loss}


@pytest.mark.parametrize(
    ("labels", "tags"), [({"team": "audio"}, []), ({"team": "vision"}, ["a-net"])]
)
def test_labels_and_tags_change_on_the_tpu_vm(
    google: Google, labels: dict[str, str], tags: list[str]
) -> None:
    google.serves()
    node: Any = SPEC["node"]
    spec = {**SPEC, "node": {**node, **({"tags": tags} if tags else {})}}
    other = {**ASKED, "labels": labels, "request": {"tpu": {"nodeSpec": [spec]}, "spot": {}}}
    found = QueuedRequestProvider().diff(ENTRY, ASKED, other)
    assert (found.changes, found.replaces) == (True, [])
    QueuedRequestProvider().update(ENTRY, ASKED, other)
    asked = {"labels": labels, "tags": tags}
    assert ("PATCH", NODE, {"updateMask": "labels,tags"}, asked) in google.calls


def test_labels_of_a_request_that_waits_cannot_change(google: Google) -> None:
    google.puts("ACCEPTED")
    with pytest.raises(RuntimeError, match="still waits for capacity"):
        QueuedRequestProvider().update(ENTRY, ASKED, {**ASKED, "labels": {}})


def test_a_request_is_deleted_with_its_tpu_vm_once_google_lets_it(google: Google) -> None:
    google.serves()
    google.at(40, google.there.clear)
    google.refusals = []
    original = google.request

    def refuses(method: str, url: str, **given: Any) -> requests.Response:
        if method == "DELETE" and google.now < 5:
            return answer(400, "FAILED_PRECONDITION", "between two states")
        return original(method, url, **given)

    google.request = refuses  # type: ignore[method-assign]
    QueuedRequestProvider().delete(ENTRY, ASKED)
    assert google.there == {}
    assert ("DELETE", ENTRY, {"force": "true"}, None) in google.calls
    assert 5 <= google.now < 40


def test_the_endpoints_are_those_of_the_ready_tpu_vm_in_worker_order(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    google.puts("ACCEPTED")
    google.at(600, lambda: google.serves("CREATING"))
    google.at(900, google.serves)
    made = QueuedNodeProvider().create(WAITED_FOR)
    assert made.outs is not None
    assert [worker["ipAddress"] for worker in made.outs["endpoints"]] == ["10.10.0.2", "10.10.0.3"]
    assert {worker["port"] for worker in made.outs["endpoints"]} == {"8470"}
    assert 900 <= google.now <= 915
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in said] == [
        "a-tpu: ACCEPTED",
        "a-tpu: ACTIVE, its TPU VM CREATING",
    ]
    assert "at most 90 minutes" in said[0]


def test_the_wait_ends_and_the_place_in_the_queue_is_kept(google: Google) -> None:
    google.puts("WAITING_FOR_RESOURCES")
    with pytest.raises(RuntimeError, match=r"WAITING_FOR_RESOURCES after 90 minutes .* keeps"):
        QueuedNodeProvider().create(WAITED_FOR)
    assert google.now == pytest.approx(90 * 60)
    assert ENTRY in google.there


def test_a_request_that_fails_says_why_and_what_to_do(google: Google) -> None:
    google.puts("FAILED", failedData={"error": {"message": "no more capacity"}})
    with pytest.raises(RuntimeError, match=r"FAILED: no more capacity.*pulumi up`"):
        QueuedNodeProvider().create(WAITED_FOR)


def test_a_refresh_sees_a_tpu_vm_that_was_taken_away(google: Google) -> None:
    google.serves()
    assert QueuedNodeProvider().read(NODE, WAITED_FOR).id == NODE
    google.serves("PREEMPTED")
    assert QueuedNodeProvider().read(NODE, WAITED_FOR).id == ""


def test_a_refresh_sees_tpu_vms_go_with_their_request(google: Google) -> None:
    google.serves()
    del google.there[ENTRY]
    assert QueuedNodeProvider().read(NODE, WAITED_FOR).id == ""


def test_another_request_means_another_tpu_vm_and_another_patience_does_not() -> None:
    diff, unknown = QueuedNodeProvider().diff, rpc.deserialize_property(rpc.UNKNOWN, True)
    assert diff(NODE, WAITED_FOR, {**WAITED_FOR, "requested": unknown}).replaces == ["requested"]
    patience = diff(NODE, WAITED_FOR, {**WAITED_FOR, "waitMinutes": 5})
    assert (patience.changes, patience.replaces) == (True, [])
    stored = {**WAITED_FOR, "endpoints": ENDPOINTS}
    kept = QueuedNodeProvider().update(NODE, stored, {**WAITED_FOR, "waitMinutes": 5})
    assert kept.outs == {**stored, "waitMinutes": 5}


def test_a_request_for_slices_asks_for_a_whole_number_of_them(google: Google) -> None:
    QueuedRequestProvider().create(SLICES)
    _, _, _, body = google.calls[0]
    (spec,) = body["tpu"]["nodeSpec"]
    assert json.dumps(spec["multiNodeParams"]) == '{"nodeIdPrefix": "a-tpu", "nodeCount": 2}'
    assert spec["node"]["labels"] == {"team": "vision"}


def test_the_endpoints_are_those_of_all_slices_once_all_are_ready(
    google: Google, capsys: pytest.CaptureFixture[str]
) -> None:
    google.puts("PROVISIONING")
    google.at(60, lambda: google.serves_slices("READY", "CREATING"))
    google.at(90, lambda: google.serves_slices("READY", "READY"))
    made = QueuedNodeProvider().create(SLICES_WAITED_FOR)
    assert made.outs is not None
    assert [worker["ipAddress"] for worker in made.outs["endpoints"]] == ["10.10.0.2", "10.10.1.2"]
    assert 90 <= google.now <= 105
    assert "ACTIVE, its TPU VM CREATING" in capsys.readouterr().out


def test_a_slice_that_was_taken_away_is_the_loss_of_the_whole_request(google: Google) -> None:
    google.serves_slices("READY", "PREEMPTED")
    outs = QueuedRequestProvider().read(ENTRY, SLICES).outs
    assert outs is not None
    assert outs["loss"] == "its TPU VM a-tpu-1 is PREEMPTED"
    assert QueuedNodeProvider().read(f"{NODE}-0", SLICES_WAITED_FOR).id == ""


def test_labels_change_on_every_slice_and_are_seen_on_every_slice(google: Google) -> None:
    google.serves_slices("READY", "READY")
    QueuedRequestProvider().update(ENTRY, SLICES, {**SLICES, "labels": {"team": "audio"}})
    patched = [name for method, name, _, _ in google.calls if method == "PATCH"]
    assert patched == [f"{NODE}-0", f"{NODE}-1"]
    google.there[f"{NODE}-0"]["labels"] = {"team": "vision"}
    google.there[f"{NODE}-1"]["labels"] = {"team": "theirs"}
    outs = QueuedRequestProvider().read(ENTRY, SLICES).outs
    assert outs is not None
    assert outs["labels"] == {"team": "theirs"}


def test_another_number_of_slices_is_another_request_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = json.loads(json.dumps(SLICES).replace("2.0", "3"))
    diff = QueuedRequestProvider().diff(ENTRY, SLICES, more)
    assert diff.replaces == ["request"]
    assert (
        "a-tpu: another queued resource has replaced it. It loses its place"
        in capsys.readouterr().out
    )
    again = json.loads(json.dumps(SLICES).replace("2.0", "2"))
    assert not QueuedRequestProvider().diff(ENTRY, SLICES, again).changes


def test_a_deletion_has_the_time_that_the_stack_gives_it(google: Google) -> None:
    google.serves()
    original = google.request

    def stays(method: str, url: str, **given: Any) -> requests.Response:
        return answer(200, body={}) if method == "DELETE" else original(method, url, **given)

    google.request = stays  # type: ignore[method-assign]
    with pytest.raises(TimeoutError, match="after 5 minutes"):
        QueuedRequestProvider().delete(ENTRY, {**ASKED, "deleteMinutes": 5.0})
    assert google.now == pytest.approx(300)


def test_a_state_of_this_release_finds_its_providers() -> None:
    for provider in (QueuedRequestProvider, QueuedNodeProvider, VertexJobsProvider):
        written = base64.b64decode(serialize_provider(provider()))
        assert type(provider_of(written)) is provider


@pytest.mark.parametrize("changed", [b"", b"\x80\x04.", b"."])
def test_a_pickle_that_differs_in_a_byte_is_not_loaded(changed: bytes) -> None:
    written = base64.b64decode(serialize_provider(QueuedNodeProvider()))
    with pytest.raises(UnknownProviderError, match="this checkout doesn't have"):
        provider_of(written[:-1] + changed + b"\x94.")


def test_a_pickle_that_runs_something_is_not_loaded(tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "touched",)

    forged = pickle.dumps(Runs())
    with pytest.raises(UnknownProviderError):
        provider_of(forged)
    assert not (tmp_path / "touched").exists()
    pickle.loads(forged)
    assert (tmp_path / "touched").exists()
