"""What `pulumi up` itself says about an error of Google's, also of one that it does not hear."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.tpu.api import NODE
from localcloud.testing import session
from tpu_infra import advice
from tpu_infra.credentials import client_of

TPU = f"projects/{DEFAULT_PROJECT}/locations/us-central1-b/nodes/a-tpu"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    cloud = LocalCloud(tmp_path / "cloud")
    cloud.start()
    projects.enable_services(cloud.cloud, DEFAULT_PROJECT, ["tpu.googleapis.com"])
    monkeypatch.setattr(advice, "users_client", lambda: client_of(session(cloud)))
    yield cloud
    cloud.stop()


def waited(seconds: list[float], stack: str | None = "dev") -> list[float]:
    """Watch a TPU without waiting; the seconds that it would have taken."""
    advice.tell_if_refused(TPU, stack, seconds.append)
    return seconds


def test_the_cures_of_known_errors_are_found_once_each() -> None:
    out = 'Error code 8, message: There is no more capacity in the zone "us-central1-b"'
    (cure,) = advice.cures(f"1 error occurred:\n\t* {out}\n{out}")
    assert cure.startswith("try again later, or choose another zone")
    assert advice.cures("something strange") == []


# As the provider writes it; each of its lines is a message of its own to the doctor.
QUOTA = """1 error occurred:
\t* Error creating Vm: googleapi: Error 429: Quota limit 'TPUV2sPerProjectPerZoneForTPUAPI' has \
been exceeded. Limit: 0 in zone us-central1-b.
Details:
[
  {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure"
  }
]
, rateLimitExceeded
"""


def test_a_quota_that_is_too_small_is_no_bucket_that_is_asked_too_often() -> None:
    (cure,) = advice.cures(QUOTA)
    assert "ask for a higher quota" in cure


def test_a_doctor_who_does_not_answer_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (("false",), ("/nowhere/doctor",), ("echo", "[]"), ("echo", "{}")):
        monkeypatch.setattr(advice, "_DOCTOR", command)
        assert advice.cures("googleapi: Error 429: Quota limit 'A' has been exceeded") == []


def test_a_tpu_that_google_has_not_begun_to_make_is_a_warning_after_a_minute(
    cloud: LocalCloud, warnings: list[str]
) -> None:
    assert waited([]) == [60.0]
    (warning,) = warnings
    assert warning.startswith("a-tpu: Google refuses to create it, usually because a quota")
    assert "`tpustack check --live --stack dev`" in warning


def test_of_a_component_tpustack_has_no_stack_file_to_ask_about(
    cloud: LocalCloud, warnings: list[str]
) -> None:
    waited([], None)
    (warning,) = warnings
    assert "To ask Google now, open https://console.cloud.google.com/iam-admin/quotas?" in warning


def test_a_tpu_that_google_is_making_gives_no_warning(
    cloud: LocalCloud, warnings: list[str]
) -> None:
    node = {"name": TPU, "state": "CREATING", "apiVersion": "V2"}
    cloud.cloud.store.put(NODE, TPU, node)
    waited([])
    assert warnings == []


def test_without_credentials_there_is_no_warning(
    warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice, "users_client", lambda: None)
    waited([])
    assert warnings == []
