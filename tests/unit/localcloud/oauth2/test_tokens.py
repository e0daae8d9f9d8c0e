from __future__ import annotations

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.services.oauth2 import refresh_token
from localcloud.testing import Client

DEVELOPER = "developer@tpu-stack.local"
TOKEN = "https://oauth2.googleapis.com/token"
PROJECT = "cloudresourcemanager.googleapis.com/v1/projects/tpu-stack-local"


def refreshed(session: requests.Session, token: str) -> requests.Response:
    form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": "c"}
    return session.post(TOKEN, data=form, timeout=20)


def test_a_refresh_token_buys_an_access_token(api: Client, cloud: Cloud) -> None:
    answer = refreshed(api.session, refresh_token(cloud)).json()
    assert answer["token_type"] == "Bearer"
    client = Client(api.local_cloud, "")
    client.session.headers["Authorization"] = f"Bearer {answer['access_token']}"
    assert client.get(PROJECT)["projectId"] == "tpu-stack-local"


def test_a_refresh_token_is_no_access_token_and_the_other_way_round(
    api: Client, cloud: Cloud, owner: str
) -> None:
    client = Client(api.local_cloud, "")
    client.session.headers["Authorization"] = f"Bearer {refresh_token(cloud)}"
    client.get(PROJECT, status=403)
    answer = refreshed(api.session, owner)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


@pytest.mark.parametrize("token", ["", "nonsense", "ya29.local-e30=.abc"])
def test_a_wrong_refresh_token_is_an_invalid_grant(api: Client, token: str) -> None:
    answer = refreshed(api.session, token)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


def test_signed_grants_are_refused_clearly(api: Client) -> None:
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "x.y.z"}
    answer = api.session.post(TOKEN, data=form, timeout=20)
    assert answer.json()["error"] == "unsupported_grant_type"
    assert "jwt-bearer" in answer.json()["error_description"]


def test_the_caller_is_described(api: Client) -> None:
    assert api.get("openidconnect.googleapis.com/v1/userinfo")["email"] == DEVELOPER
    assert api.get("www.googleapis.com/oauth2/v2/userinfo")["email"] == DEVELOPER


def test_anonymous_callers_have_no_user_info(api: Client) -> None:
    nobody = api.as_member("")
    nobody.get("openidconnect.googleapis.com/v1/userinfo", status=401)


def test_tokens_end_outlive_a_restart_and_cannot_be_forged(
    local_cloud: LocalCloud, api: Client, clock: VirtualClock, owner: str
) -> None:
    client = Client(local_cloud, "")
    changed = owner[:-1] + ("1" if owner.endswith("0") else "0")
    for forged in (changed, owner.replace("ya29.local-", "ya29."), "Basic"):
        client.session.headers["Authorization"] = f"Bearer {forged}"
        client.get(PROJECT, status=401)
    local_cloud.stop()
    again = LocalCloud(local_cloud.cloud.home, clock=clock)
    again.start()
    client = Client(again, "")
    client.session.headers["Authorization"] = f"Bearer {owner}"
    client.get(PROJECT)
    clock.advance(31 * 86400)
    client.get(PROJECT, status=401)
    again.stop()
