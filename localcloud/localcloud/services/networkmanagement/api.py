"""The Network Management API's registration and the names of what it keeps."""

from __future__ import annotations

from localcloud.core.call import Call
from localcloud.core.registry import Api, Collection

API = Api("networkmanagement", ("v1",))
TESTS = Collection(
    API, "projects.locations.global.connectivityTests", "networkmanagement.connectivitytests"
)
TEST = "connectivity-test"
"""The store's kind of tests, by `projects/p/locations/global/connectivityTests/t`."""


def place(call: Call) -> str:
    """Return the one location that the API has."""
    return f"projects/{call.project}/locations/global"


def test_name(call: Call) -> str:
    """Return the full name of the test in the path."""
    return f"{place(call)}/connectivityTests/{call.params['connectivityTestsId']}"
