"""The command line's calls to Google: what is repeated, and what an unanswered call says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPSConnection

from localcloud.app import LocalCloud
from localcloud.core.call import CLOUD_PLATFORM, Principal
from localcloud.core.cloud import DEVELOPER
from tpu_core import google as core
from tpu_infra.credentials import Given
from tpustack.cloud import google as google_client
from tpustack.cloud.google import (
    AccountToken,
    ApiError,
    Forbidden,
    Google,
    Nodes,
    NotFound,
    look_up,
)
from tpustack.errors import TpustackError

WHOSE = "https://openidconnect.googleapis.com/v1/userinfo"
URL = "https://compute.googleapis.com/compute/v1/projects/mine/zones"
Replies = Callable[..., list[requests.PreparedRequest]]


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    """Answer the next requests with these statuses, or errors; return the requests."""
    monkeypatch.setattr("tpu_core.google.time.sleep", lambda _: None)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "ya29.token")

    def reply(*answers: int | Exception, content: bytes = b"{}") -> list[requests.PreparedRequest]:
        sent: list[requests.PreparedRequest] = []
        left = iter(answers)

        def send(self: object, request: requests.PreparedRequest, **_: object) -> object:
            sent.append(request)
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            made = requests.Response()
            made.status_code, made.raw, made.request = answer, io.BytesIO(content), request
            return made

        monkeypatch.setattr(HTTPAdapter, "send", send)
        return sent

    return reply


def test_a_read_is_repeated_until_google_answers(replies: Replies) -> None:
    sent = replies(503, requests.ConnectionError("refused"), 404)
    with pytest.raises(NotFound, match="answers 404"):
        Google().get(URL)
    assert [request.method for request in sent] == ["GET"] * 3


def test_a_write_is_sent_once_since_it_may_have_been_carried_out(replies: Replies) -> None:
    sent = replies(503)
    with pytest.raises(ApiError, match="answers 503") as refusal:
        Google().post(URL, {}, {})
    assert (len(sent), refusal.value.status) == (1, 503)


def test_an_unreachable_host_is_one_message(replies: Replies) -> None:
    replies(requests.ConnectionError("no route"))
    with pytest.raises(TpustackError, match=r"can.t be reached: .*no route"):
        Google().post(URL, {})


def test_a_write_whose_token_has_expired_is_sent_again_with_another(
    replies: Replies, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", str(file))
    sent = replies(401, 404)
    google = Google()
    file.write_text("new")
    assert google.exchange("POST", URL, {}, io.BytesIO(b"all"))[0] == 404
    assert [each.headers["Authorization"] for each in sent] == ["Bearer old", "Bearer new"]


def test_a_token_that_was_handed_over_and_has_expired_is_reported_at_once(replies: Replies) -> None:
    sent = replies(401)
    with pytest.raises(TpustackError, match="access token: it has expired or been revoked"):
        Google().get(URL)
    assert len(sent) == 1


def test_a_read_is_repeated_when_google_cannot_be_asked_for_a_token(
    replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN")
    person = {"type": "authorized_user", "client_id": "c", "client_secret": "s"}
    monkeypatch.setenv("GOOGLE_CREDENTIALS", json.dumps({**person, "refresh_token": "r"}))
    content = b'{"access_token": "new", "expires_in": 3600}'
    sent = replies(requests.ConnectionError("no route"), 200, 200, content=content)
    assert Google().get(URL)["access_token"] == "new"
    assert [each.method for each in sent] == ["POST", "POST", "GET"]
    assert sent[-1].headers["Authorization"] == "Bearer new"


def test_an_entry_of_netrc_does_not_replace_the_token(
    replies: Replies, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password secret")
    monkeypatch.setenv("NETRC", str(netrc))
    sent = replies(200)
    Google().get(URL)
    assert sent[0].headers["Authorization"] == "Bearer ya29.token"


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_calls_trust_the_named_certificates_and_share_a_connection(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    cloud = LocalCloud(tmp_path / "cloud")
    cloud.start()
    who = Principal(DEVELOPER, frozenset({CLOUD_PLATFORM}), own_client=True)
    opened: list[object] = []
    connect = HTTPSConnection.connect

    def counted(self: HTTPSConnection) -> None:
        opened.append(self)
        connect(self)

    monkeypatch.setattr(HTTPSConnection, "connect", counted)
    try:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{cloud.listener.port}")
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.cloud.token(who))
        with monkeypatch.context() as trusting:
            trusting.setenv(name, str(cloud.authority.bundle))
            google = Google()
            for _ in range(3):
                assert google.get(WHOSE)["email"] in DEVELOPER
            assert len(opened) == 1
        monkeypatch.setattr(google_client, "_PATIENCE", 0.0)
        with pytest.raises(ApiError, match="certificate verify failed"):
            Google().get(WHOSE)
    finally:
        cloud.stop()


def test_a_call_that_needs_a_quota_project_is_charged_to_its_own_project(replies: Replies) -> None:
    sent = replies(403, 404, content=b"The API requires a quota project, which is not set")
    with pytest.raises(NotFound):
        Google().get(URL)
    assert [each.headers.get("X-Goog-User-Project") for each in sent] == [None, "mine"]


def test_missing_credentials_are_reported_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("GOOGLE_CREDENTIALS", "not JSON")
    with pytest.raises(TpustackError, match="no Google credentials: gcp:credentials"):
        Google()


def test_a_page_of_a_proxy_is_refused() -> None:
    with pytest.raises(ApiError, match="something else than a JSON object"):
        Google(lambda *_: (200, {}, b"<html>")).get(URL)


def test_errors_of_google_are_errors_of_the_core_too() -> None:
    for error in (Forbidden("no"), NotFound("no"), ApiError(0, "no")):
        assert isinstance(error, core.GoogleError)
        assert str(error) == "no"
    assert AccountToken(Given(token="t"))() == "t"
    assert google_client.says_disabled(Forbidden("it is disabled"))


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("RUNNING", "READY"),
        ("PENDING", "CREATING"),
        ("STAGING", "CREATING"),
        ("TERMINATED", "TERMINATED"),
    ],
)
def test_a_machine_with_a_tpu_is_shown_as_the_tpu_api_shows_a_tpu(
    replies: Replies, status: str, state: str
) -> None:
    machine = {
        "name": "t",
        "status": status,
        "machineType": "https://www.googleapis.com/x/machineTypes/ct6e-standard-4t",
        "creationTimestamp": "2026-11-26T00:00:00.000-08:00",
    }
    outputs = {"architecture": "compute", "project": "p", "tpu_zone": "us-east5-a"}
    replies(200, content=json.dumps(machine).encode())
    zone, node = look_up(Google(), outputs, "t")
    assert (zone, node["state"]) == ("us-east5-a", state)
    assert node["acceleratorType"] == "ct6e-standard-4t"
    sent = replies(200, content=json.dumps({"items": [machine]}).encode())
    nodes = Nodes(Google(), "p", compute=True)
    assert nodes.find(["us-east5-a"], "t") == (zone, node)
    assert [str(one.url).rpartition("/compute/v1/")[2].partition("?")[0] for one in sent] == [
        "projects/p/zones/us-east5-a/instances"
    ]


SLICE_OUTPUTS = {"architecture": "compute", "project": "p", "tpu_zone": "us-east5-a"}


def machines_of(*statuses: str) -> list[dict[str, Any]]:
    """The machines of the group `t`, with these statuses."""
    group = "projects/1/zones/us-east5-a/instanceGroupManagers/t"
    return [
        {
            "name": f"t-{number:03}",
            "status": status,
            "machineType": "zones/us-east5-a/machineTypes/ct6e-standard-4t",
            "creationTimestamp": "2026-11-26T00:00:00.000-08:00",
            "metadata": {"items": [{"key": "created-by", "value": group}]},
        }
        for number, status in enumerate(statuses, 1)
    ]


WHOLE: dict[str, Any] = {"targetSize": 3, "status": {"isStable": True}}


class Asked(Google):
    """Google, with these machines and a group of three, or another one; None: there is none."""

    def __init__(
        self,
        machines: list[dict[str, Any]],
        group: dict[str, Any] | None = WHOLE,
    ) -> None:
        self._machines, self._group = machines, group

    def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        if url.endswith("/instances"):
            return {"items": self._machines}
        if url.endswith("/instanceGroupManagers/t") and self._group:
            return self._group
        raise NotFound(url)


@pytest.mark.parametrize(
    ("statuses", "state"),
    [
        (("RUNNING", "RUNNING", "RUNNING"), "READY"),
        (("STAGING", "RUNNING", "RUNNING"), "CREATING"),
        (("RUNNING", "STAGING", "RUNNING"), "CREATING"),
        (("STAGING", "STAGING", "STAGING"), "CREATING"),
        (("RUNNING", "RUNNING", "STOPPING"), "TERMINATED"),
    ],
)
def test_a_slice_of_machines_is_one_tpu_that_is_ready_when_all_of_them_are(
    statuses: tuple[str, ...], state: str
) -> None:
    machines = machines_of(*statuses)
    _, node = look_up(Asked(machines), SLICE_OUTPUTS, "t")
    assert (node["name"], node["state"]) == ("t", state)
    for group in (WHOLE, None):
        with pytest.raises(NotFound):
            look_up(Asked([], group), SLICE_OUTPUTS, "t")


def test_a_slice_that_waits_for_capacity_is_shown_with_the_reason() -> None:
    error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "The zone is full"}
    bulk = {"inProgress": True, "lastProgressCheck": {"error": {"errors": [error]}}}
    status = {"isStable": False, "bulkInstanceOperation": bulk}
    group = {"creationTimestamp": "2026-11-26T00:00:00.000-08:00", "status": status}
    _, node = look_up(Asked([], group), SLICE_OUTPUTS, "t")
    assert (node["state"], node["health"]) == ("CREATING", error["code"])
    assert node["healthDescription"] == "The zone is full"
    status["bulkInstanceOperation"] = {"inProgress": True}
    assert "health" not in look_up(Asked([], group), SLICE_OUTPUTS, "t")[1]


def test_who_may_not_look_at_groups_has_no_slice_that_waits() -> None:
    """The role of who deploys single machines lacks the permission."""

    class Refused(Asked):
        def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> Any:
            if "/instanceGroupManagers/" in url:
                raise Forbidden("compute.instanceGroupManagers.get")
            return super().get(url, parameters)

    with pytest.raises(NotFound):
        look_up(Refused([]), SLICE_OUTPUTS, "t")


@pytest.mark.parametrize(
    ("group", "state"),
    [
        (WHOLE, "READY"),
        ({**WHOLE, "targetSize": 4}, "TERMINATED"),
        ({"targetSize": 4, "status": {"isStable": False}}, "CREATING"),
        (
            {
                "targetSize": 4,
                "status": {"isStable": True, "bulkInstanceOperation": {"inProgress": True}},
            },
            "CREATING",
        ),
        (None, "TERMINATED"),
    ],
)
def test_a_slice_that_lacks_one_of_its_machines_is_not_ready(
    group: dict[str, Any] | None, state: str
) -> None:
    google = Asked(machines_of("RUNNING", "RUNNING", "RUNNING"), group)
    assert look_up(google, SLICE_OUTPUTS, "t")[1]["state"] == state
    found = Nodes(google, "p", compute=True).find(["us-east5-a"], "t")
    assert found is not None
    assert found[1]["state"] == state
