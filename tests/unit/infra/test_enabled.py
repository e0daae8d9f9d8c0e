"""What a preview says about disabled APIs, looked up in a project that is really there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pulumi
import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER
from localcloud.core.projects import DEFAULT_PROJECT
from tpu_infra import advice, apis
from tpu_infra.apis import apis_of
from tpu_infra.settings.parse import parse

from .conftest import config

EVERYTHING = {
    "bucket": {"encryption": {}},
    "budget": {"amount": 5, "emails": ["a@example.com"], "pubsubTopic": "alerts"},
    "messages": {"pubsubTopic": "tpu-messages", "emails": ["a@example.com"]},
}
ALL_APIS = apis_of(parse(config(**EVERYTHING), "test"))
# These ask for the API in the project of the caller's credentials.
ASK_NOBODYS_PROJECT = ("cloudresourcemanager.googleapis.com", "cloudbilling.googleapis.com")
TPU, STORAGE = "tpu.googleapis.com", "storage.googleapis.com"
Token = Callable[[str], None]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def cloud(tmp_path: Path, clock: VirtualClock) -> Iterator[LocalCloud]:
    """A new project, in which APIs take as long to enable as on Google."""
    cloud = LocalCloud(tmp_path / "cloud", clock=clock, latency="real")
    cloud.start()
    yield cloud
    cloud.stop()


@pytest.fixture
def token(cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Token:
    """Gives this process somebody's token of the project, and nothing else."""
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{cloud.listener.port}")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(cloud.authority.bundle))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    def become(member: str) -> None:
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", cloud.cloud.token(Principal(member)))

    return become


def test_what_is_disabled_is_found_whatever_page_the_rest_is_on(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    token(DEVELOPER)
    monkeypatch.setattr(apis, "_PAGE", 2)
    assert apis.disabled(DEFAULT_PROJECT, [TPU, STORAGE]) == [TPU]


def test_without_permission_no_api_counts_as_disabled(token: Token) -> None:
    token("user:stranger@example.com")
    assert apis.disabled(DEFAULT_PROJECT, [TPU]) == []


def test_without_credentials_google_is_not_asked(
    token: Token, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.setattr(apis, "_enabled", lambda *_: pytest.fail("Google was asked"))
    assert apis.disabled(DEFAULT_PROJECT, [TPU]) == []


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (True, "info: `pulumi up` enables these APIs in some-project: tpu.googleapis.com."),
        (False, "warn: Disabled in some-project, and enableApis is false: tpu.googleapis.com."),
    ],
)
def test_the_preview_says_who_enables_what_is_disabled(
    ours: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(pulumi.log, "info", lambda text: heard.append(f"info: {text}"))
    monkeypatch.setattr(pulumi.log, "warn", lambda text: heard.append(f"warn: {text}"))
    settings = parse(config(enableApis=ours), "test")
    advice.tell_disabled(settings, [TPU])
    advice.tell_disabled(settings, [])
    (sentence,) = heard
    assert sentence.startswith(said)


@pytest.mark.parametrize("api", ALL_APIS)
def test_an_update_waits_until_a_just_enabled_api_answers(
    api: str, token: Token, cloud: LocalCloud, clock: VirtualClock
) -> None:
    token(DEVELOPER)
    default = projects.is_service_enabled(cloud.cloud, DEFAULT_PROJECT, api)
    projects.enable_services(cloud.cloud, DEFAULT_PROJECT, [api], after=30)
    begun = clock.now()
    apis.wait_until_it_answers(DEFAULT_PROJECT, api, clock.now, clock.advance)
    waits = not default and api not in ASK_NOBODYS_PROJECT
    assert (30 <= clock.now() - begun < 34) == waits


def test_an_api_that_never_answers_is_waited_for_five_minutes(
    token: Token, clock: VirtualClock
) -> None:
    token(DEVELOPER)
    with pytest.raises(TimeoutError, match="still refuses calls"):
        apis.wait_until_it_answers(DEFAULT_PROJECT, TPU, clock.now, clock.advance)
