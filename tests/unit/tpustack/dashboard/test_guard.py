"""The dashboard answers its own page alone."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.unit.tpustack.dashboard.conftest import BUCKET, PORT, TOKEN

JOB = f"/api/places/{BUCKET}/jobs/runs"
EVERY = [
    ("GET", "/api/feed"),
    ("GET", JOB),
    ("GET", f"{JOB}/log"),
    ("GET", f"{JOB}/log.txt"),
    ("POST", f"{JOB}/stop"),
    ("POST", f"{JOB}/resubmit"),
    ("GET", f"/api/places/{BUCKET}/curves?training=jobs/runs"),
    ("POST", f"/api/places/{BUCKET}/drift"),
]


@pytest.mark.parametrize(("verb", "path"), EVERY)
@pytest.mark.parametrize("given", ["", TOKEN, "Bearer", "Bearer wrong", f"Bearer {TOKEN}x"])
def test_every_route_requires_the_token(page: TestClient, verb: str, path: str, given: str) -> None:
    answer = page.request(verb, path, headers={"Authorization": given})
    assert answer.status_code == 401
    assert "open the address that the command printed" in answer.json()["problem"]


def test_a_token_in_the_address_or_a_cookie_opens_nothing(page: TestClient) -> None:
    headers = {"Authorization": "", "Cookie": f"token={TOKEN}; Authorization=Bearer {TOKEN}"}
    assert page.get(f"{JOB}?token={TOKEN}", headers=headers).status_code == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", "0.0.0.0:8000"],
)
@pytest.mark.parametrize("path", ["/", JOB])
def test_a_rebound_dns_name_is_refused(page: TestClient, host: str, path: str) -> None:
    answer = page.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert BUCKET not in answer.text


def test_localhost_is_accepted_as_host(page: TestClient) -> None:
    own = {"Host": f"localhost:{PORT}", "Origin": f"http://localhost:{PORT}"}
    assert page.get(JOB, headers=own).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Origin": f"http://127.0.0.1:{PORT + 1}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("verb", "path"), [("POST", f"{JOB}/stop"), ("GET", JOB)])
def test_another_origin_is_refused_even_with_the_token(
    page: TestClient, headers: dict[str, str], verb: str, path: str
) -> None:
    assert page.request(verb, path, headers=headers).status_code == 403
    assert page.get(JOB).json()["stop"] is False


def test_cors_preflight_requests_are_refused(page: TestClient) -> None:
    asking = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = page.options(f"{JOB}/stop", headers=asking)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/", "/main.js", JOB, "/api/nothing", "/nothing"])
def test_every_answer_has_the_security_headers(page: TestClient, path: str) -> None:
    headers = page.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Set-Cookie" not in headers
    assert TOKEN not in page.get(path).text


@pytest.mark.parametrize("verb", ["stop", "resubmit"])
def test_get_requests_change_nothing(page: TestClient, verb: str) -> None:
    assert page.get(f"{JOB}/{verb}").status_code == 405
    assert page.get(JOB).json()["stop"] is False
