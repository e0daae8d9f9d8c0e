from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.localcloud.storage.conftest import HOST, Bucket

PROJECT = projects.DEFAULT_PROJECT
KMS = "cloudkms.googleapis.com/v1"
RINGS = f"projects/{PROJECT}/locations/us-central1/keyRings"
KEY = f"{RINGS}/ring/cryptoKeys/key"
ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
ENCRYPTION = {"defaultKmsKeyName": KEY}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("cloudkms.googleapis.com",)


@pytest.fixture(autouse=True)
def key(api: Client) -> None:
    api.post(f"{KMS}/{RINGS}", {}, keyRingId="ring")
    body = {"purpose": "ENCRYPT_DECRYPT"}
    api.post(f"{KMS}/{RINGS}/ring/cryptoKeys", body, cryptoKeyId="key")


def let_storage_use_the_key(api: Client, allowed: bool = True) -> None:
    account = api.get(f"{HOST}/storage/v1/projects/{PROJECT}/serviceAccount")["email_address"]
    bindings = [{"role": ROLE, "members": [f"serviceAccount:{account}"]}] if allowed else []
    api.post(f"{KMS}/{KEY}:setIamPolicy", {"policy": {"bindings": bindings}})


def create(api: Client, key: str, status: int) -> str:
    encryption = {"defaultKmsKeyName": key}
    body = {"name": "locked", "location": "US-CENTRAL1", "encryption": encryption}
    answer = api.post(f"{HOST}/storage/v1/b", body, project=PROJECT, status=status)
    return str(answer.get("error", {}).get("message", ""))


def test_a_bucket_takes_only_a_key_of_its_region_that_storage_may_use(api: Client) -> None:
    assert "has been authorized to use this key" in create(api, KEY, 403)
    let_storage_use_the_key(api)
    assert "not compatible" in create(api, KEY.replace("us-central1", "europe-west4"), 400)
    assert "Invalid Cloud KMS key name" in create(api, "my-key", 400)
    create(api, f"{KEY}-other", 403)
    create(api, KEY, 200)


def test_objects_are_written_with_the_keys_primary_version_and_name_it(api: Client) -> None:
    let_storage_use_the_key(api)
    bucket = Bucket(api, encryption=ENCRYPTION)
    assert bucket.put("one")["kmsKeyName"] == f"{KEY}/cryptoKeyVersions/1"
    assert bucket.read("one") == b"data"
    api.patch(bucket.url, {"encryption": None})
    assert "kmsKeyName" not in bucket.put("three")
    assert bucket.send("four", kmsKeyName=KEY).status_code == 501


def test_objects_encrypted_with_a_destroyed_key_are_unreadable(api: Client) -> None:
    let_storage_use_the_key(api)
    bucket = Bucket(api, encryption=ENCRYPTION)
    bucket.put("one")
    api.post(f"{KMS}/{KEY}/cryptoKeyVersions/1:destroy", {})
    assert b"DESTROY_SCHEDULED" in bucket.read("one", status=400)
    copy = f"{bucket.url}/o/one/copyTo/b/{bucket.name}/o/two"
    api.post(copy, {}, status=400)
    api.post(f"{bucket.url}/o/all/compose", {"sourceObjects": [{"name": "one"}]}, status=400)
    assert bucket.send("three").status_code == 400
    assert bucket.names() == ["one"]


def test_without_its_grant_storage_can_neither_write_nor_read(api: Client) -> None:
    let_storage_use_the_key(api)
    bucket = Bucket(api, encryption=ENCRYPTION)
    bucket.put("one")
    let_storage_use_the_key(api, allowed=False)
    bucket.read("one", status=403)
    assert bucket.send("two").status_code == 403
