"""A preview asks Google about what the catalog does not know."""

from collections.abc import Callable
from pathlib import Path

import pulumi
import pytest

from infra import advice
from infra.settings.parse import parse
from tpu_core.google import Json

from .conftest import config, context_of

RUNTIME = "tpu-vm-tf-2.21.0-pod-se"
URL = f"https://tpu.googleapis.com/v2/projects/some-project/locations/us-central1-b/runtimeVersions/{RUNTIME}"


class Google:
    """Answers every question with one status."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []

    def call(self, _method: str, url: str, _body: None) -> tuple[int, Json]:
        self.asked.append(url)
        if not self.status:
            raise ConnectionError(url)
        return self.status, {}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    heard: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", heard.append)
    monkeypatch.setattr(pulumi.log, "info", heard.append)
    return heard


@pytest.fixture
def preview(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Previews a stack while Google answers with one status; returns what Google was asked."""

    def look(status: int, **settings: object) -> list[str]:
        google = Google(status)
        monkeypatch.setattr(advice, "users_client", lambda: google)
        parsed = parse(config(**settings), "test")

        @pulumi.runtime.test  # type: ignore[untyped-decorator]
        def previewed() -> None:
            advice.report_unlisted(parsed, context_of(parsed, root))

        previewed()
        return google.asked

    return look


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, [f"tpu.runtimeVersion: Google offers {RUNTIME}."]),
        (
            404,
            [f"tpu.runtimeVersion: Google does not offer {RUNTIME}. `pulumi up` would fail."],
        ),
        (403, []),
        (0, []),
    ],
)
def test_preview_says_what_google_answers_about_an_unlisted_name(
    preview: Callable[..., list[str]], said: list[str], status: int, answer: list[str]
) -> None:
    tpu = {"acceleratorType": "v2-8", "runtimeVersion": RUNTIME}
    assert preview(status, tpu=tpu) == [URL]
    assert said == answer


def test_google_is_not_asked_about_what_the_catalog_knows(
    preview: Callable[..., list[str]], said: list[str]
) -> None:
    assert preview(404) == []
    assert said == []
