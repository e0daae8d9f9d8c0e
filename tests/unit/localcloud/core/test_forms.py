"""The forms of JSON that Google's clients send and ask for."""

from __future__ import annotations

from typing import Any

import pytest

from localcloud import data
from localcloud.core.discovery import document
from localcloud.testing import Client

_IN = "projects/tpu-stack-local"
_RINGS = f"cloudkms.googleapis.com/v1/{_IN}/locations/global/keyRings"
_NUMBERS: Any = {"$alt": "json;enum-encoding=int"}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("cloudkms.googleapis.com",)


def test_a_property_named_like_prose_is_a_field() -> None:
    schemas = document("tpu", "v2").schemas
    assert schemas["Node"]["properties"]["description"] == {"type": "string"}


def test_fields_bound_by_the_path_may_be_repeated_in_the_body(api: Client) -> None:
    api.post(_RINGS, {}, keyRingId="r")
    api.post(f"{_RINGS}/r/cryptoKeys", {"purpose": 1}, cryptoKeyId="k")
    key = f"{_IN}/locations/global/keyRings/r/cryptoKeys/k"
    api.post(f"{_RINGS}/r/cryptoKeys/k:encrypt", {"name": key, "plaintext": "YQ=="})
    # Here the body is the resource, which has no such field.
    said = api.post(_RINGS, {"parent": _IN}, keyRingId="s", status=400)["error"]["message"]
    assert '"parent"' in said


def test_enums_are_taken_and_shown_as_numbers(api: Client) -> None:
    api.post(_RINGS, {}, keyRingId="r")
    key = f"{_RINGS}/r/cryptoKeys"
    made = api.post(key, {"purpose": 1}, cryptoKeyId="k")
    assert (made["purpose"], made["primary"]["state"]) == ("ENCRYPT_DECRYPT", "ENABLED")
    shown = api.get(f"{key}/k", **_NUMBERS)
    assert (shown["purpose"], shown["primary"]["state"]) == (1, 1)
    api.post(f"{key}/k/cryptoKeyVersions/1:destroy", {})
    assert api.get(f"{key}/k/cryptoKeyVersions/1", **_NUMBERS)["state"] == 4
    # Number 5 is ASYMMETRIC_SIGN, which stands at another place of the list; 99 is nothing.
    assert "ASYMMETRIC_SIGN" in str(api.post(key, {"purpose": 5}, cryptoKeyId="l", status=501))
    assert "'purpose'" in str(api.post(key, {"purpose": 99}, cryptoKeyId="l", status=400))


def test_fields_may_be_written_as_in_the_proto(api: Client) -> None:
    api.post(_RINGS, {}, keyRingId="r")
    sent = {"purpose": "ENCRYPT_DECRYPT", "destroy_scheduled_duration": "86400s"}
    made = api.post(f"{_RINGS}/r/cryptoKeys", sent, cryptoKeyId="k")
    assert made["destroyScheduledDuration"] == "86400s"


def test_numbers_are_of_enums_that_there_are() -> None:
    apis = [("cloudkms", "v1"), ("tpu", "v2"), ("iam", "v1")]
    apis += [("aiplatform", "v1")]
    schemas: dict[str, Any] = {}
    for name, version in apis:
        schemas |= document(name, version).schemas
    for place, numbers in data.load("enum-numbers").items():
        schema, _, field = place.partition(".")
        assert set(numbers) <= set(schemas[schema]["properties"][field]["enum"]), place
