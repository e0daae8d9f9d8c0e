from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.serving import in_thread
from tpu_core.google import Client, Tokens, Transport
from tpu_training.cluster import google
from tpu_training.cluster.endpoint import NamedTpu, Wait
from tpu_training.cluster.google import (
    DeniedForNow,
    NotThere,
    NotYet,
    Tpu,
    TpuName,
    complete_name,
    read_tpu,
    wait_until_ready,
)
from tpu_training.errors import AccessError, EndpointError, InputError, TpuStateError

NAME = TpuName("p", "us-central1-b", "my-tpu")
PATH = "/v2/projects/p/locations/us-central1-b/nodes/my-tpu"
CLIENT = Client(Transport(Tokens(lambda: ("secret", 3600.0))))
READY = Tpu("READY", ("10.0.0.2:8470",), "HEALTHY", "2.19.1")


class Scripted:
    """Gives one answer after the other, then the last one for ever."""

    def __init__(self, *answers: Tpu | Exception) -> None:
        self.answers = list(answers)
        self.now = 0.0

    def get(self, name: TpuName) -> Tpu:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def wait(self) -> Wait:
        return Wait(40, 10.0, lambda: self.now, self.sleep)


def state(name: str) -> Tpu:
    return Tpu(name, (), "", None)


@pytest.mark.parametrize("first", [state("CREATING"), state("STARTING"), NotYet("not there")])
def test_a_tpu_that_is_not_ready_yet_is_waited_for_with_a_message_each_try(
    first: Tpu | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    api = Scripted(first, first, state("READY"), READY)
    with caplog.at_level(logging.INFO):
        assert wait_until_ready(api.get, NAME, api.wait) == READY
    assert len(caplog.records) == 3


def test_what_takes_long_is_done_while_the_tpu_is_made() -> None:
    """Loading TensorFlow takes as long as some TPUs need to come."""
    api = Scripted(state("CREATING"), READY)
    when: list[float] = []
    wait_until_ready(api.get, NAME, api.wait, lambda: when.append(api.now))
    assert when == [0.0]
    wait_until_ready(api.get, NAME, api.wait, lambda: pytest.fail("it was READY at once"))


@pytest.mark.parametrize("name", ["PREEMPTED", "TERMINATED"])
def test_a_lost_tpu_gets_a_minute_in_which_it_may_be_recreated(name: str) -> None:
    again = Scripted(*[state(name)] * 3, NotYet("not there"), state("CREATING"), READY)
    assert wait_until_ready(again.get, NAME, again.wait) == READY
    lost = Scripted(state(name))
    with pytest.raises(TpuStateError, match=f"my-tpu in us-central1-b is {name}: .* it"):
        wait_until_ready(lost.get, NAME, lost.wait)
    assert 60 <= lost.now < 90


@pytest.mark.parametrize("name", ["FAILED", "STOPPED"])
def test_a_state_that_waiting_does_not_change_is_an_error_at_once(name: str) -> None:
    api = Scripted(state(name))
    with pytest.raises(TpuStateError, match=f"my-tpu in us-central1-b is {name}: .* it"):
        wait_until_ready(api.get, NAME, api.wait)
    assert api.now == 0


def test_the_deadline_is_an_error_that_says_what_was_seen_last() -> None:
    api = Scripted(NotYet("the Cloud TPU API answers 503 (busy)"))
    with pytest.raises(EndpointError, match=r"400 s: the Cloud TPU API answers 503 \(busy\)"):
        wait_until_ready(api.get, NAME, api.wait)
    assert api.now == 400


def test_a_denial_gets_a_minute_to_heal() -> None:
    healed = Scripted(*[DeniedForNow("denied")] * 4, READY)
    assert wait_until_ready(healed.get, NAME, healed.wait) == READY
    lasting = Scripted(DeniedForNow("grant roles/tpu.viewer"))
    with pytest.raises(AccessError, match=r"roles/tpu\.viewer"):
        wait_until_ready(lasting.get, NAME, lasting.wait)
    assert 60 <= lasting.now < 90


def test_an_unhealthy_tpu_is_used_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    api = Scripted(Tpu("READY", ("10.0.0.2:8470",), "UNHEALTHY_MAINTENANCE", None))
    wait_until_ready(api.get, NAME, api.wait)
    assert "UNHEALTHY_MAINTENANCE" in caplog.text


def test_a_tpu_that_may_move_is_looked_for_in_one_zone_after_the_other() -> None:
    class Zones(Scripted):
        def get(self, name: TpuName) -> Tpu:
            if name.zone != "us-central1-c":
                raise NotThere("not here")
            return super().get(name)

    names = TpuName("p", "us-central1-b, us-central1-c,us-central1-f", "my-tpu")
    api = Zones(state("CREATING"), READY)
    assert wait_until_ready(api.get, names, api.wait) == READY
    gone = Zones(NotThere("not here either"))
    with pytest.raises(EndpointError, match=r"no TPU my-tpu in zone us-central1-b, us-.*-f of"):
        wait_until_ready(gone.get, names, gone.wait)


class Server:
    """An HTTP server whose answers are set by path; remembers the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append((self.path, dict(self.headers)))
                status, content = server.answers.get(self.path, (404, {"error": {}}))
                self.send_response(status)
                self.end_headers()
                self.wfile.write((json.dumps(content) if content != "" else "").encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server()
    monkeypatch.setattr(google, "TPU", f"http://{server.host}/")
    monkeypatch.setattr("tpu_core.google._GOOGLE", re.compile(f"http://{server.host}/"))
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with in_thread(server.http):
        yield server


def test_a_tpu_vm_is_read_from_v2_with_its_workers_in_order(server: Server) -> None:
    endpoints = [{"ipAddress": f"10.0.0.{n}", "port": 8470} for n in (4, 2, 3)]
    node = {
        "state": "READY",
        "networkEndpoints": endpoints,
        "runtimeVersion": "tpu-vm-tf-2.19.1-pod-pjrt",
    }
    server.answers[PATH] = (200, node)
    tpu = read_tpu(CLIENT, NAME)
    assert tpu == Tpu("READY", ("10.0.0.4:8470", "10.0.0.2:8470", "10.0.0.3:8470"), "", "2.19.1")
    assert server.requests[0][1]["Authorization"] == "Bearer secret"


def test_a_classic_node_is_read_from_v1_when_v2_does_not_know_it(server: Server) -> None:
    node = {
        "state": "READY",
        "health": "HEALTHY",
        "networkEndpoints": [{"ipAddress": "10.0.0.2"}],
        "tensorflowVersion": "2.12",
    }
    server.answers[PATH.replace("v2", "v1")] = (200, node)
    tpu = read_tpu(CLIENT, NAME)
    assert tpu == Tpu("READY", ("10.0.0.2:8470",), "HEALTHY", "2.12")


def details(reason: str) -> dict[str, Any]:
    return {"error": {"message": "no", "details": [{"reason": reason}]}}


@pytest.mark.parametrize(
    ("status", "content", "kind", "words"),
    [
        (404, {}, NotThere, "no TPU my-tpu in zone us-central1-b of project p"),
        (429, {"error": {"message": "slow"}}, NotYet, r"429 \(slow\)"),
        (503, "", NotYet, "503"),
        (401, {}, AccessError, "credentials"),
        (403, {"error": {"message": "no"}}, DeniedForNow, r"roles/tpu\.viewer"),
        (403, details("SERVICE_DISABLED"), DeniedForNow, "gcloud services enable tpu"),
        (403, details("ACCESS_TOKEN_SCOPE_INSUFFICIENT"), AccessError, "auth/cloud-platform"),
        (
            403,
            {"error": {"message": "Request had insufficient authentication scopes."}},
            AccessError,
            "auth/cloud-platform",
        ),
        (400, {"error": {"message": "bad"}}, EndpointError, r"400 .*\(bad\)"),
    ],
)
def test_error_answers_say_what_cures_them(
    server: Server, status: int, content: Any, kind: type[Exception], words: str
) -> None:
    server.answers[PATH] = (status, content)
    with pytest.raises(kind, match=words) as caught:
        read_tpu(CLIENT, NAME)
    assert type(caught.value) is kind


def test_an_api_that_does_not_answer_may_answer_later(server: Server) -> None:
    server.http.server_close()
    with pytest.raises(NotYet, match="doesn't answer"):
        read_tpu(CLIENT, NAME)


def test_project_and_zone_come_from_the_metadata_server() -> None:
    entries = {"project/project-id": "p", "instance/zone": "projects/1/zones/z"}
    target = NamedTpu("n", None, None, "--tpu")
    assert complete_name(target, entries.get) == TpuName("p", "z", "n")


def test_a_name_without_project_and_zone_is_an_error_that_names_the_flags(server: Server) -> None:
    with pytest.raises(InputError, match=r"--tpu-project .*TPU_PROJECT.* and --tpu-zone"):
        complete_name(NamedTpu("n", None, None, "TPU_NAME"), google.metadata)


TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"


@pytest.fixture
def tokens(server: Server, monkeypatch: pytest.MonkeyPatch) -> Tokens:
    monkeypatch.setitem(sys.modules, "google.auth", None)
    return google.default_tokens()


def test_the_metadata_servers_token_is_kept_until_it_expires(
    server: Server, tokens: Tokens
) -> None:
    server.answers[TOKEN] = (200, {"access_token": "one", "expires_in": 3600})
    assert [tokens(), tokens()] == ["one", "one"]
    assert len(server.requests) == 1
    assert server.requests[0][1]["Metadata-Flavor"] == "Google"


def test_a_token_about_to_expire_is_replaced(server: Server, tokens: Tokens) -> None:
    server.answers[TOKEN] = (200, {"access_token": "one", "expires_in": 30})
    tokens()
    server.answers[TOKEN] = (200, {"access_token": "two", "expires_in": 30})
    assert tokens() == "two"


def test_a_machine_without_credentials_is_told_how_to_get_some(tokens: Tokens) -> None:
    with pytest.raises(AccessError, match="gcloud auth application-default login"):
        tokens()
