"""Google's KMS client, which speaks gRPC unless it is told otherwise."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest
from google.api_core.exceptions import AlreadyExists, FailedPrecondition, InvalidArgument
from google.cloud import kms_v1
from google.iam.v1 import policy_pb2

from localcloud.testing import Client
from tests.unit.localcloud.grpc.conftest import Channel

PLACE = "projects/tpu-stack-local/locations/us-central1"
RING = f"{PLACE}/keyRings/ring"
KEY = f"{RING}/cryptoKeys/key"


@pytest.fixture
def keys(channel: Channel) -> Any:
    """A client, and a key ring with a key."""
    service = kms_v1.services.key_management_service
    transport = service.transports.KeyManagementServiceGrpcTransport(
        channel=channel("cloudkms.googleapis.com")
    )
    client = kms_v1.KeyManagementServiceClient(transport=transport)
    client.create_key_ring(parent=PLACE, key_ring_id="ring", key_ring={})
    client.create_crypto_key(
        parent=RING, crypto_key_id="key", crypto_key={"purpose": "ENCRYPT_DECRYPT"}
    )
    return client


def test_a_secret_is_encrypted_and_decrypted_with_a_key_that_rest_sees_too(
    keys: Any, api: Client
) -> None:
    sealed = keys.encrypt(name=KEY, plaintext=b"\x00secret\xff")
    assert sealed.name == f"{KEY}/cryptoKeyVersions/1"
    assert keys.decrypt(name=KEY, ciphertext=sealed.ciphertext).plaintext == b"\x00secret\xff"
    with pytest.raises(InvalidArgument, match="ciphertext is invalid"):
        keys.decrypt(name=KEY, ciphertext=sealed.ciphertext[:-1])
    assert api.get(f"cloudkms.googleapis.com/v1/{KEY}")["purpose"] == "ENCRYPT_DECRYPT"


def test_checksums_go_both_ways_as_googles_samples_check_them(keys: Any) -> None:
    plain = b"secret"
    checksum = google_crc32c.value(plain)
    request = {"name": KEY, "plaintext": plain, "plaintext_crc32c": checksum}
    sealed = keys.encrypt(request=request)
    assert sealed.verified_plaintext_crc32c
    assert sealed.ciphertext_crc32c == google_crc32c.value(sealed.ciphertext)
    back = keys.decrypt(
        request={
            "name": KEY,
            "ciphertext": sealed.ciphertext,
            "ciphertext_crc32c": sealed.ciphertext_crc32c,
        }
    )
    assert (back.plaintext_crc32c, back.used_primary) == (checksum, True)
    with pytest.raises(InvalidArgument, match="is not the CRC32C of plaintext"):
        keys.encrypt(request=request | {"plaintext_crc32c": checksum + 1})
    assert not keys.encrypt(name=KEY, plaintext=plain).verified_plaintext_crc32c


def test_versions_are_listed_and_disabled(keys: Any) -> None:
    versions = keys.list_crypto_key_versions(parent=KEY)
    assert [version.name[-1] for version in versions] == ["1"]
    first = {"name": f"{KEY}/cryptoKeyVersions/1", "state": "DISABLED"}
    changed = keys.update_crypto_key_version(crypto_key_version=first, update_mask="state")
    assert changed.state.name == "DISABLED"
    with pytest.raises(FailedPrecondition, match="DISABLED"):
        keys.encrypt(name=KEY, plaintext=b"secret")
    with pytest.raises(AlreadyExists):
        keys.create_key_ring(parent=PLACE, key_ring_id="ring", key_ring={})


def test_policies_are_set_on_the_resource_that_is_named(keys: Any) -> None:
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    binding = policy_pb2.Binding(role=role, members=["user:a@example.com"])
    policy = policy_pb2.Policy(bindings=[binding])
    keys.set_iam_policy({"resource": KEY, "policy": policy})
    assert keys.get_iam_policy({"resource": KEY}).bindings == [binding]
    assert not keys.get_iam_policy({"resource": RING}).bindings
