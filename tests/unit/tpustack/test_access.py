"""A project that can't be reached is one message before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core.clock import VirtualClock
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client
from tpustack.cloud import google
from tpustack.cloud.google import Forbidden, Google
from tpustack.errors import TpustackError, UsageError


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    cloud = LocalCloud(tmp_path / "home", clock=VirtualClock())
    cloud.start()
    client = Client(cloud)
    monkeypatch.setattr(google, "Google", lambda: Google(client.session))
    yield client
    cloud.stop()


def test_a_project_that_the_caller_sees_is_fine(api: Client) -> None:
    google.require_project(DEFAULT_PROJECT)


def test_an_unknown_project_is_one_message(api: Client) -> None:
    with pytest.raises(UsageError) as refusal:
        google.require_project("somebody-elses")
    said = str(refusal.value)
    assert said.startswith("gcp:project: somebody-elses can't be reached: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("Cloud Resource Manager API has not been used before or it is disabled."),
        TpustackError("no Google credentials"),
    ],
)
def test_an_unanswered_question_about_the_project_is_ignored(
    monkeypatch: pytest.MonkeyPatch, error: TpustackError
) -> None:
    class Silent:
        def get(self, url: str) -> None:
            raise error

    monkeypatch.setattr(google, "Google", Silent)
    google.require_project("some-project")
