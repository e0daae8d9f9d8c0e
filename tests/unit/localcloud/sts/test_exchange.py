from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
import requests
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.conditions import evaluate
from localcloud.testing import Client, session as session_for

PROJECT = projects.DEFAULT_PROJECT
NUMBER = projects.number(PROJECT)
IAM = "iam.googleapis.com/v1"
POOLS = f"{IAM}/projects/{PROJECT}/locations/global/workloadIdentityPools"
POOL = f"projects/{NUMBER}/locations/global/workloadIdentityPools/pipelines"
AUDIENCE = f"//iam.googleapis.com/{POOL}/providers/github"
ACCOUNT = f"deployer@{PROJECT}.iam.gserviceaccount.com"
ISSUER = "https://token.actions.githubusercontent.com"
PROVIDER: dict[str, Any] = {
    "oidc": {"issuerUri": ISSUER},
    "attributeMapping": {
        "google.subject": "assertion.sub",
        "attribute.repository": "assertion.repository",
    },
    "attributeCondition": "assertion.repository == 'me/mine' && assertion.ref != 'refs/pull/1'",
}
Exchange = Callable[..., requests.Response]


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("iam.googleapis.com", "iamcredentials.googleapis.com", "sts.googleapis.com")


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.fixture(scope="module")
def issuer() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


def signed(issuer: RSAPrivateKey, claims: dict[str, Any]) -> str:
    parts = ({"alg": "RS256", "kid": "1"}, claims)
    text = ".".join(encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{encoded(issuer.sign(text.encode(), PKCS1v15(), SHA256()))}"


@pytest.fixture
def exchange(
    api: Client, local_cloud: LocalCloud, issuer: RSAPrivateKey, clock: VirtualClock
) -> Exchange:
    """Sends what Google's client libraries send for a pipeline's token with `claims`."""
    numbers = issuer.public_key().public_numbers()
    n, e = (encoded(i.to_bytes((i.bit_length() + 7) // 8, "big")) for i in (numbers.n, numbers.e))
    keys = {"keys": [{"kid": "1", "kty": "RSA", "n": n, "e": e}]}
    faults.change_setting(local_cloud.cloud, "oidc-issuers", {ISSUER: keys})
    api.post(POOLS, {}, workloadIdentityPoolId="pipelines")
    api.post(f"{POOLS}/pipelines/providers", PROVIDER, workloadIdentityPoolProviderId="github")

    def send(**claims: Any) -> requests.Response:
        said = {
            "iss": ISSUER,
            "aud": f"https:{AUDIENCE}",
            "sub": "repo:me/mine:ref:refs/heads/main",
            "repository": "me/mine",
            "ref": "refs/heads/main",
            "exp": clock.now() + 300,
        } | claims
        return session_for(local_cloud, "").post(
            "https://sts.googleapis.com/v1/token",
            data={
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                "audience": AUDIENCE,
                "scope": "https://www.googleapis.com/auth/cloud-platform",
                "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "subject_token": signed(issuer, said),
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            },
            timeout=30,
        )

    return send


def bound(api: Client, member: str) -> None:
    """Lets `member` act as the deployer's account."""
    api.post(f"{IAM}/projects/{PROJECT}/serviceAccounts", {"accountId": "deployer"})
    policy = {"bindings": [{"role": "roles/iam.workloadIdentityUser", "members": [member]}]}
    account = f"{IAM}/projects/{PROJECT}/serviceAccounts/{ACCOUNT}"
    api.post(f"{account}:setIamPolicy", {"policy": policy})


def impersonate(local_cloud: LocalCloud, token: str) -> requests.Response:
    caller = session_for(local_cloud, "")
    caller.headers["Authorization"] = f"Bearer {token}"
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{ACCOUNT}"
    scopes = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    return caller.post(f"{url}:generateAccessToken", json=scopes, timeout=30)


@pytest.mark.parametrize(
    "member",
    [
        f"principalSet://iam.googleapis.com/{POOL}/attribute.repository/me/mine",
        f"principalSet://iam.googleapis.com/{POOL}/*",
        f"principal://iam.googleapis.com/{POOL}/subject/repo:me/mine:ref:refs/heads/main",
    ],
)
def test_a_pipeline_becomes_the_account_that_its_repository_may_be(
    api: Client, exchange: Exchange, local_cloud: LocalCloud, member: str
) -> None:
    bound(api, member)
    answer = impersonate(local_cloud, exchange().json()["access_token"])
    assert answer.status_code == 200, answer.text


def test_another_repository_of_the_pool_may_not_be_it(
    api: Client, exchange: Exchange, local_cloud: LocalCloud
) -> None:
    bound(api, f"principalSet://iam.googleapis.com/{POOL}/attribute.repository/me/other")
    assert impersonate(local_cloud, exchange().json()["access_token"]).status_code == 403


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"repository": "you/yours"}, "attribute condition"),
        ({"ref": "refs/pull/1"}, "attribute condition"),
        ({"aud": "somebody else"}, "audience"),
        ({"iss": "https://example.com"}, "issuer"),
        ({"exp": 1}, "expired"),
    ],
)
def test_a_token_that_does_not_fit_is_refused(
    exchange: Exchange, claims: dict[str, Any], why: str
) -> None:
    answer = exchange(**claims)
    assert answer.status_code == 400
    assert why in answer.json()["error_description"]


def test_a_subject_of_more_than_127_bytes_is_refused_in_googles_words(exchange: Exchange) -> None:
    assert exchange(sub="ä" * 63 + "a").status_code == 200
    answer = exchange(sub="ä" * 64)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    said = answer.json()["error_description"]
    assert said.startswith(
        "The size of mapped attribute google.subject exceeds the 127 bytes limit"
    )


def test_a_token_signed_with_another_key_is_refused(
    exchange: Exchange, local_cloud: LocalCloud
) -> None:
    other = generate_private_key(65537, 2048).public_key().public_numbers()
    key = {"kid": "1", "n": encoded(other.n.to_bytes(256, "big")), "e": "AQAB"}
    faults.change_setting(local_cloud.cloud, "oidc-issuers", {ISSUER: {"keys": [key]}})
    assert "signed" in exchange().json()["error_description"]


def test_a_deleted_provider_exchanges_nothing_and_keeps_its_name(
    api: Client, exchange: Exchange
) -> None:
    provider = f"{POOLS}/pipelines/providers/github"
    api.delete(provider)
    assert exchange().status_code == 400
    api.post(f"{POOLS}/pipelines/providers", PROVIDER, status=409,
             workloadIdentityPoolProviderId="github")  # fmt: skip
    assert api.get(provider)["state"] == "DELETED"
    assert api.get(f"{POOLS}/pipelines/providers") == {}


def test_a_provider_for_a_shared_issuer_needs_a_condition(api: Client, exchange: Exchange) -> None:
    url = f"{POOLS}/pipelines/providers"
    body = {**PROVIDER, "attributeCondition": ""}
    error = api.post(url, body, workloadIdentityPoolProviderId="open", status=400)["error"]
    assert "must reference one of the provider's claims" in error["message"]
    api.patch(f"{url}/github", {}, updateMask="attributeCondition", status=400)
    operation = api.patch(f"{url}/github", {"displayName": "GitHub"}, updateMask="displayName")
    assert set(operation) == {"name"}
    assert api.get(f"{url}/github")["displayName"] == "GitHub"
    api.post(url, {**PROVIDER, "oidc": {"issuerUri": "http://example.com"}}, status=400,
             workloadIdentityPoolProviderId="plain")  # fmt: skip
    ended = api.get(f"{IAM}/{operation['name']}")
    assert ended == {"name": operation["name"], "done": True}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("assertion.sub == 'a && b'", True),
        ("!assertion.flag || assertion.sub in ['x']", False),
        ("assertion['sub'].startsWith(\"a\") && true", True),
        ("'repo:' + assertion.sub", "repo:a && b"),
        ("has(assertion.sub) && !has(assertion.environment)", True),
    ],
)
def test_conditions_are_evaluated(expression: str, value: object) -> None:
    assert evaluate(expression, {"assertion": {"sub": "a && b", "flag": True}}) == value


@pytest.mark.parametrize(
    "expression",
    ["size(assertion.sub) > 2", "__import__('os')", "a b", "has(assertion)", "has == 1"],
)
def test_expressions_that_are_not_understood_are_named(expression: str) -> None:
    with pytest.raises(Exception, match="does not understand"):
        evaluate(expression, {"assertion": {"sub": "x"}})
