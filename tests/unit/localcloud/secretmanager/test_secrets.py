"""Secrets hold what only those may read who have a role on them."""

from __future__ import annotations

import base64

import google_crc32c
import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
SECRETS = f"secretmanager.googleapis.com/v1/projects/{PROJECT}/secrets"
ONE = f"{SECRETS}/webhook"
READER = "user:reader@example.com"
AUTOMATIC: Json = {"replication": {"automatic": {}}}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("secretmanager.googleapis.com",)


def payload(text: bytes) -> Json:
    return {"payload": {"data": base64.b64encode(text).decode()}}


@pytest.fixture
def secret(api: Client) -> Json:
    return api.post(SECRETS, AUTOMATIC, secretId="webhook")


def test_the_latest_version_is_what_was_added_last(api: Client, secret: Json) -> None:
    api.get(f"{ONE}/versions/latest:access", status=404)
    for text in (b"old", b"new"):
        api.post(f"{ONE}:addVersion", payload(text))
    assert secret["name"] == f"projects/{projects.number(PROJECT)}/secrets/webhook"
    latest = api.get(f"{ONE}/versions/latest:access")
    assert base64.b64decode(latest["payload"]["data"]) == b"new"
    assert base64.b64decode(api.get(f"{ONE}/versions/1:access")["payload"]["data"]) == b"old"
    assert api.get(f"{ONE}/versions/2")["state"] == "ENABLED"
    assert "payload" not in api.get(f"{ONE}/versions/2")


def test_a_secrets_own_policy_decides_who_may_read_it(api: Client, secret: Json) -> None:
    api.post(f"{ONE}:addVersion", payload(b"x"))
    api.post(SECRETS, AUTOMATIC, secretId="other")
    api.post(f"{SECRETS}/other:addVersion", payload(b"y"))
    reader = api.as_member(READER)
    reader.get(f"{ONE}/versions/latest:access", status=403)
    binding = {"role": "roles/secretmanager.secretAccessor", "members": [READER]}
    api.post(f"{ONE}:setIamPolicy", {"policy": {"bindings": [binding]}})
    reader.get(f"{ONE}/versions/latest:access")
    reader.get(f"{SECRETS}/other/versions/latest:access", status=403)
    reader.get(ONE, status=403)
    reader.post(f"{ONE}:addVersion", payload(b"z"), status=403)


def test_secrets_and_versions_say_what_google_says_of_them(api: Client, secret: Json) -> None:
    assert secret["etag"]
    data = base64.b64decode(payload(b"x")["payload"]["data"])
    sent = {"payload": {**payload(b"x")["payload"], "dataCrc32c": str(google_crc32c.value(data))}}
    version = api.post(f"{ONE}:addVersion", sent)
    assert version["name"] == f"{secret['name']}/versions/1"
    assert version["etag"]
    assert version["replicationStatus"] == {"automatic": {}}
    assert version["clientSpecifiedPayloadChecksum"]
    sent["payload"]["dataCrc32c"] = "1"
    api.post(f"{ONE}:addVersion", sent, status=400)
    replicas = [{"location": "us-east1"}, {"location": "us-west1"}]
    api.post(SECRETS, {"replication": {"userManaged": {"replicas": replicas}}}, secretId="two")
    placed = api.post(f"{SECRETS}/two:addVersion", payload(b"x"))["replicationStatus"]
    assert placed == {"userManaged": {"replicas": replicas}}
    number = projects.number(PROJECT)
    said = api.get(f"{SECRETS}/gone", status=404)["error"]["message"]
    assert said == f"Secret [projects/{number}/secrets/gone] not found."


def test_requests_that_google_refuses_are_refused(api: Client, secret: Json) -> None:
    api.post(SECRETS, AUTOMATIC, secretId="webhook", status=409)
    api.post(SECRETS, AUTOMATIC, secretId="no dots.", status=400)
    api.post(SECRETS, {}, secretId="bare", status=400)
    api.post(f"{ONE}:addVersion", {"payload": {"data": ""}}, status=400)
    api.post(f"{ONE}:addVersion", payload(b"x" * 65537), status=400)
    api.get(f"{SECRETS}/gone", status=404)


def test_a_deleted_secret_takes_versions_and_policy_along(api: Client, secret: Json) -> None:
    api.post(f"{ONE}:addVersion", payload(b"x"))
    assert [one["name"] for one in api.get(SECRETS)["secrets"]] == [secret["name"]]
    api.delete(ONE)
    assert api.get(SECRETS) == {}
    api.post(SECRETS, AUTOMATIC, secretId="webhook")
    api.get(f"{ONE}/versions/latest:access", status=404)
