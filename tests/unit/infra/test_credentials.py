"""The program's own calls have the credentials of Google's provider, in its order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import requests
from pulumi import dynamic
from requests import Request

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.cloud import DEVELOPER
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.oauth2 import refresh_token
from localcloud.testing import Client
from tpu_infra import advice, apis, credentials
from tpu_infra.credentials import Given, given, of_program, session
from tpu_infra.resources.request import ApiResourceProvider, TpuApi
from tpu_infra.resources.vertex import CustomJobsApi
from tpu_infra.rest import Api, ApiError

WHOSE = "https://openidconnect.googleapis.com/v1/userinfo"
NODES = f"projects/{DEFAULT_PROJECT}/locations/us-central1-b"
VARIABLES = (
    *("GOOGLE_OAUTH_ACCESS_TOKEN", "GOOGLE_CREDENTIALS", "GOOGLE_CLOUD_KEYFILE_JSON"),
    *("GCLOUD_KEYFILE_JSON", "GOOGLE_IMPERSONATE_SERVICE_ACCOUNT", "GOOGLE_BILLING_PROJECT"),
    *("USER_PROJECT_OVERRIDE", "GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"),
    *("PULUMI_CONFIG", "GOOGLE_CLOUD_QUOTA_PROJECT", "no_proxy", "NO_PROXY"),
)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Api, "configured", {})


def test_a_call_of_a_preview_fails_before_the_preview_stops_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    class Silent(requests.Session):
        def request(self, *_: object, timeout: float, **more: object) -> NoReturn:  # type: ignore[override]
            waited.append(timeout)
            raise requests.ConnectTimeout("too late")

    monkeypatch.setattr(credentials, "session", lambda _: Silent())
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "t")
    warning = advice.missing_data("a-bucket")
    assert "can't be read (TimeoutError)" in (warning or "")
    assert waited[0] < advice.LONGEST


@pytest.mark.parametrize(
    ("configured", "environment", "expected"),
    [
        ({}, {}, Given()),
        ({}, {"GOOGLE_OAUTH_ACCESS_TOKEN": "t"}, Given(token="t")),
        ({}, {"GCLOUD_KEYFILE_JSON": "k"}, Given(key="k")),
        (
            {},
            {"GOOGLE_CLOUD_KEYFILE_JSON": "later", "GOOGLE_CREDENTIALS": "first"},
            Given(key="first"),
        ),
        (
            {"gcp:credentials": "ours"},
            {"GOOGLE_OAUTH_ACCESS_TOKEN": "not this", "GOOGLE_CREDENTIALS": "nor this"},
            Given(key="ours"),
        ),
        ({"gcp:accessToken": "ours"}, {"GOOGLE_CREDENTIALS": "not this"}, Given(token="ours")),
        (
            {"gcp:impersonateServiceAccountDelegates": '["b@p", "c@p"]'},
            {"GOOGLE_IMPERSONATE_SERVICE_ACCOUNT": "a@p"},
            Given(account="a@p", delegates=("b@p", "c@p")),
        ),
        (
            {"gcp:impersonateServiceAccount": "a@p"},
            {"GOOGLE_IMPERSONATE_SERVICE_ACCOUNT": "not this"},
            Given(account="a@p"),
        ),
        ({"gcp:billingProject": "p"}, {}, Given()),
        ({"gcp:billingProject": "p"}, {"USER_PROJECT_OVERRIDE": "true"}, Given(quota_project="p")),
        (
            {"gcp:userProjectOverride": "true"},
            {"GOOGLE_BILLING_PROJECT": "p"},
            Given(quota_project="p"),
        ),
    ],
)
def test_the_configuration_counts_before_the_environment(
    configured: dict[str, str],
    environment: dict[str, str],
    expected: Given,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(configured))
    assert given(configured) == of_program() == expected


def test_a_session_trusts_the_named_certificates_and_ignores_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login someone password secret")
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("SSL_CERT_FILE", "company.pem")
    made = session(Given(token="t"))
    assert made.verify == "company.pem"
    assert made.prepare_request(Request("GET", WHOSE)).headers["Authorization"] == "Bearer t"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    cloud = LocalCloud(tmp_path / "cloud")
    cloud.start()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{cloud.listener.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cloud.authority.bundle))
    yield cloud
    cloud.stop()


@pytest.fixture
def client(cloud: LocalCloud) -> Client:
    """The developer, who is no service account and may be acted as by nobody."""
    developer = Client(cloud)
    for api in ("tpu.googleapis.com", "iam.googleapis.com", "iamcredentials.googleapis.com"):
        services = f"serviceusage.googleapis.com/v1/projects/{DEFAULT_PROJECT}/services"
        developer.post(f"{services}/{api}:enable", {})
    return developer


def key_of(cloud: LocalCloud, quota_project: str = "") -> dict[str, Any]:
    """What `gcloud auth application-default login` writes."""
    return {
        "type": "authorized_user",
        "client_id": "local.apps.googleusercontent.com",
        "client_secret": "local",
        "refresh_token": refresh_token(cloud.cloud),
        **({"quota_project_id": quota_project} if quota_project else {}),
    }


def whose(said: Given) -> str:
    answer: dict[str, str] = session(said).get(WHOSE).json()
    return answer["email"]


def test_the_quota_project_of_default_credentials_does_not_block_the_stacks_apis(
    cloud: LocalCloud, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "adc.json"
    file.write_text(json.dumps(key_of(cloud, "elsewhere")), encoding="utf-8")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    assert apis.disabled(DEFAULT_PROJECT, ["tpu.googleapis.com", "pubsub.googleapis.com"]) == [
        "pubsub.googleapis.com"
    ]
    assert TpuApi().list_all(NODES, "queuedResources") == []
    # The local cloud refuses that project where it is sent after all.
    monkeypatch.setenv("USER_PROJECT_OVERRIDE", "true")
    monkeypatch.setenv("GOOGLE_BILLING_PROJECT", "elsewhere")
    with pytest.raises(ApiError, match="permission to use project elsewhere"):
        TpuApi().list_all(NODES, "queuedResources")


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("kind", ["token", "key"])
def test_a_persons_calls_count_for_the_project_that_they_are_about_where_google_asks_for_one(
    cloud: LocalCloud, client: Client, kind: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports disagree whether Vertex AI asks; organization policies always do."""
    for api in ("orgpolicy.googleapis.com", "aiplatform.googleapis.com"):
        projects.enable_services(cloud.cloud, DEFAULT_PROJECT, [api])
    faults.change_setting(cloud.cloud, "vertex-quota-project", {"on": asks})
    token = cloud.cloud.token(Principal(DEVELOPER))
    said = Given(token=token) if kind == "token" else Given(key=json.dumps(key_of(cloud)))
    policies = f"https://orgpolicy.googleapis.com/v2/projects/{DEFAULT_PROJECT}/policies"
    answer = session(said).get(f"{policies}/compute.requireOsLogin:getEffectivePolicy")
    assert answer.json()["spec"] == {"rules": []}
    monkeypatch.setattr("tpu_infra.rest.credentials.given", lambda _: said)
    vertex = CustomJobsApi("us-central1")
    place = f"projects/{DEFAULT_PROJECT}/locations/us-central1"
    assert vertex.list_all(place, "customJobs") == []
    with pytest.raises(ApiError, match="image_uri is required"):
        vertex.call("POST", f"{place}/customJobs", {"displayName": "a body that is sent again"})


@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_key_is_json_or_a_file_with_it_and_a_token_counts_before_it(
    cloud: LocalCloud, tmp_path: Path, in_a_file: bool
) -> None:
    text = json.dumps(key_of(cloud))
    (tmp_path / "key.json").write_text(text, encoding="utf-8")
    key = str(tmp_path / "key.json") if in_a_file else text
    assert whose(Given(key=key)) == DEVELOPER.partition(":")[2]
    token = cloud.cloud.token(Principal("user:grace@example.com"))
    assert whose(Given(token=token, key=key)) == "grace@example.com"


def test_an_account_is_acted_as_by_the_queue_with_the_stacks_own_configuration(
    cloud: LocalCloud, client: Client
) -> None:
    accounts = f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/serviceAccounts"
    email = client.post(accounts, {"accountId": "deployer"})["email"]
    role = "roles/iam.serviceAccountTokenCreator"
    policy = {"bindings": [{"role": role, "members": [DEVELOPER]}]}
    client.post(f"{accounts}/{email}:setIamPolicy", {"policy": policy})
    configured = {
        "gcp:accessToken": cloud.cloud.token(Principal(DEVELOPER)),
        "gcp:impersonateServiceAccount": email,
    }
    assert whose(given(configured)) == email
    request = dynamic.ConfigureRequest(cast(Any, configured))
    ApiResourceProvider().configure(request)
    with pytest.raises(ApiError, match=f"tpu.nodes.list.* {email}"):
        TpuApi().list_all(NODES, "queuedResources")


def test_invalid_credentials_give_one_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Api, "configured", {"gcp:credentials": "no-such-file.json"})
    with pytest.raises(ApiError, match=r"gcp:credentials .* is neither JSON nor the path"):
        TpuApi()
