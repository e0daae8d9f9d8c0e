"""Each API writes errors in its own of three shapes."""

from __future__ import annotations

import pytest

from localcloud.core.errors import ApiError, error_info
from localcloud.testing import Client

_IN = "projects/tpu-stack-local"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return tuple(f"{name}.googleapis.com" for name in ("cloudkms", "compute", "iam", "pubsub"))


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        (f"compute.googleapis.com/compute/v1/{_IN}/global/networks/none", {"errors"}),
        ("storage.googleapis.com/storage/v1/b/none", {"errors"}),
        (f"cloudkms.googleapis.com/v1/{_IN}/locations/global/keyRings/none", {"status"}),
        (f"pubsub.googleapis.com/v1/{_IN}/topics/none", {"status"}),
        (f"iam.googleapis.com/v1/{_IN}/serviceAccounts/none@x.org", {"errors", "status"}),
    ],
)
def test_an_api_writes_errors_in_its_own_shape(api: Client, url: str, fields: set[str]) -> None:
    error = api.get(url, status=404)["error"]
    assert set(error) == {"code", "message", *fields}


def test_an_old_api_has_a_status_where_the_front_end_refuses() -> None:
    error = ApiError(403, "m", reason="accessNotConfigured", details=[error_info("x")])
    assert error.body("compute")["error"]["status"] == "PERMISSION_DENIED"
    assert error.body("compute")["error"]["errors"][0]["domain"] == "usageLimits"


def test_reasons_follow_the_status_in_apis_with_both() -> None:
    taken = ApiError(409, "there is one")
    assert taken.body("iam")["error"]["errors"][0]["reason"] == "alreadyExists"
    assert taken.body("storage")["error"]["errors"][0]["reason"] == "conflict"


def test_a_failed_precondition_names_its_header() -> None:
    (entry,) = ApiError(412, "m").body("storage")["error"]["errors"]
    assert (entry["locationType"], entry["location"]) == ("header", "If-Match")
