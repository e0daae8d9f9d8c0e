"""A preview says who loses access to a bucket that the stack takes over."""

from typing import Any

import pulumi
import pytest

from tpu_infra import advice
from tpu_infra.settings.parse import parse

from .conftest import config

OPEN = {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited"}
CLOSED = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}


class Google:
    """Answers as Cloud Storage does: with a bucket, or that there is none."""

    def __init__(self, access: dict[str, Any] | None) -> None:
        self._access = access

    def call(self, _method: str, url: str, _body: None) -> tuple[int, dict[str, Any]]:
        fields = "fields=iamConfiguration"
        assert url == f"https://storage.googleapis.com/storage/v1/b/a-bucket?{fields}"
        return (200, {"iamConfiguration": self._access}) if self._access else (404, {"error": {}})


@pulumi.runtime.test  # type: ignore[untyped-decorator]
def previewed(**bucket: object) -> None:
    advice.report_access(parse(config(bucket=bucket), "test"), "a-bucket")


@pytest.mark.parametrize(
    "access",
    [
        OPEN,
        {**OPEN, "publicAccessPrevention": "enforced"},
        {**CLOSED, "publicAccessPrevention": "inherited"},
    ],
)
def test_preview_warns_of_access_lost_on_an_open_bucket(
    access: dict[str, Any], warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: Google(access))
    previewed()
    (warning,) = warnings
    assert warning.startswith(
        "gs://a-bucket: the update turns on uniform bucket-level access and public"
    )


@pytest.mark.parametrize("google", [Google(CLOSED), Google(None), None])
def test_preview_is_silent_about_a_closed_or_missing_bucket(
    google: Google | None, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: google)
    previewed()
    assert warnings == []


def test_preview_does_not_look_at_a_bucket_it_does_not_create(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: pytest.fail("Google was asked"))
    previewed(create=False, name="a-bucket")
    assert warnings == []
