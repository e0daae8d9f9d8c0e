from __future__ import annotations

import base64

import pytest

from localcloud.core import projects
from localcloud.core.clock import VirtualClock, rfc3339
from localcloud.testing import Client

PROJECT = projects.DEFAULT_PROJECT
DAY = 86400
RINGS = f"cloudkms.googleapis.com/v1/projects/{PROJECT}/locations/us-central1/keyRings"
KEYS = f"{RINGS}/ring/cryptoKeys"
KEY = f"{KEYS}/key"
SYMMETRIC = {"purpose": "ENCRYPT_DECRYPT"}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("cloudkms.googleapis.com",)


@pytest.fixture(autouse=True)
def key(api: Client, enabled_apis: tuple[str, ...]) -> None:
    api.post(RINGS, {}, keyRingId="ring")
    api.post(KEYS, SYMMETRIC, cryptoKeyId="key")


def text(plain: str) -> str:
    return base64.b64encode(plain.encode()).decode()


def test_a_key_decrypts_only_what_it_encrypted(api: Client) -> None:
    api.post(KEYS, SYMMETRIC, cryptoKeyId="other")
    sealed = api.post(f"{KEY}:encrypt", {"plaintext": text("secret")})["ciphertext"]
    assert sealed != text("secret")
    assert api.post(f"{KEY}:decrypt", {"ciphertext": sealed})["plaintext"] == text("secret")
    api.post(f"{KEYS}/other:decrypt", {"ciphertext": sealed}, status=400)


def test_names_are_taken_for_ever_since_neither_rings_nor_keys_can_be_deleted(api: Client) -> None:
    assert api.post(RINGS, {}, keyRingId="ring", status=409)["error"]["status"] == "ALREADY_EXISTS"
    api.post(KEYS, SYMMETRIC, cryptoKeyId="key", status=409)
    api.delete(KEY, status=501)
    api.post(RINGS, {}, keyRingId="a ring", status=400)
    elsewhere = RINGS.replace("us-central1", "middle-earth1")
    api.post(elsewhere, {}, keyRingId="ring", status=404)
    assert [ring["name"].rpartition("/")[2] for ring in api.get(RINGS)["keyRings"]] == ["ring"]
    assert api.get(KEYS)["totalSize"] == 1


def test_a_version_is_not_usable_while_it_is_disabled_or_once_it_is_to_be_destroyed(
    api: Client,
) -> None:
    sealed = api.post(f"{KEY}:encrypt", {"plaintext": text("secret")})["ciphertext"]
    version = api.get(KEY)["primary"]["name"]
    url = f"cloudkms.googleapis.com/v1/{version}"
    api.patch(url, {"state": "DISABLED"}, updateMask="state")
    error = api.post(f"{KEY}:decrypt", {"ciphertext": sealed}, status=400)["error"]
    assert "DISABLED" in error["message"]
    api.patch(url, {"state": "ENABLED"}, updateMask="state")
    api.post(f"{KEY}:decrypt", {"ciphertext": sealed})
    assert api.post(f"{url}:destroy", {})["state"] == "DESTROY_SCHEDULED"
    error = api.post(f"{KEY}:decrypt", {"ciphertext": sealed}, status=400)["error"]
    assert "DESTROY_SCHEDULED" in error["message"]
    assert api.get(KEY)["primary"]["state"] == "DESTROY_SCHEDULED"
    api.patch(url, {"state": "ENABLED"}, updateMask="state", status=400)
    restored = api.post(f"{url}:restore", {})
    assert (restored["state"], "destroyTime" in restored) == ("DISABLED", False)
    api.post(f"{url}:restore", {}, status=400)


def test_a_rotation_is_kept_with_the_key(api: Client, clock: VirtualClock) -> None:
    next_time = rfc3339(clock.now() + DAY)
    rotation = {"rotationPeriod": f"{DAY}s", "nextRotationTime": next_time}
    mask = "rotationPeriod,nextRotationTime"
    api.patch(KEY, rotation | {"rotationPeriod": "60s"}, updateMask=mask, status=400)
    assert api.patch(KEY, rotation, updateMask=mask)["nextRotationTime"] == next_time
    assert len(api.get(f"{KEY}/cryptoKeyVersions")["cryptoKeyVersions"]) == 1
    assert "rotationPeriod" not in api.patch(KEY, {}, updateMask=mask)


def test_administrators_of_keys_may_use_them_only_if_a_policy_says_so(api: Client) -> None:
    url = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = api.post(f"{url}:getIamPolicy")
    policy["bindings"].append({"role": "roles/cloudkms.admin", "members": ["user:a@example.com"]})
    api.post(f"{url}:setIamPolicy", {"policy": policy})
    admin = api.as_member("user:a@example.com")
    body = {"plaintext": text("secret")}
    admin.post(f"{KEY}:encrypt", body, status=403)
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    granted = {"bindings": [{"role": role, "members": ["user:b@example.com"]}]}
    admin.post(f"{KEY}:setIamPolicy", {"policy": granted})
    assert admin.get(f"{KEY}:getIamPolicy")["bindings"] == granted["bindings"]
    user = api.as_member("user:b@example.com")
    user.post(f"{KEY}:encrypt", body)
    user.get(KEY, status=403)
    wanted = {"permissions": ["cloudkms.cryptoKeys.get", "cloudkms.cryptoKeyVersions.useToEncrypt"]}
    assert (
        user.post(f"{KEY}:testIamPermissions", wanted)["permissions"] == wanted["permissions"][1:]
    )
    assert admin.get(f"{RINGS}/ring:getIamPolicy") == {"etag": "ACAB"}


def test_kms_refuses_key_types_it_does_not_support(api: Client) -> None:
    api.post(KEYS, {"purpose": "ASYMMETRIC_SIGN"}, cryptoKeyId="sign", status=501)
    external = SYMMETRIC | {"versionTemplate": {"protectionLevel": "EXTERNAL"}}
    api.post(KEYS, external, cryptoKeyId="external", status=501)
    api.post(f"{KEY}:encrypt", {"plaintext": "not base64!"}, status=400)
    api.patch(KEY, {"purpose": "MAC"}, updateMask="purpose", status=400)
