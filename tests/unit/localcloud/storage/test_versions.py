"""What becomes of an object: its versions, copies and compositions."""

from __future__ import annotations

import base64

import google_crc32c

from tests.unit.localcloud.storage.conftest import Bucket


def test_a_versioned_bucket_keeps_what_was_replaced_or_deleted(bucket: Bucket) -> None:
    bucket.api.patch(bucket.url, {"versioning": {"enabled": True}})
    first = bucket.put("x", b"1")["generation"]
    second = bucket.put("x", b"2")["generation"]
    url = f"{bucket.url}/o/x"
    bucket.api.delete(url, status=204)
    bucket.api.get(url, status=404)
    page = bucket.api.get(f"{bucket.url}/o", versions="true")
    assert [item["generation"] for item in page["items"]] == [first, second]
    assert all("timeDeleted" in item for item in page["items"])
    old = bucket.api.session.get(url, params={"alt": "media", "generation": str(first)}, timeout=30)
    assert old.content == b"1"
    bucket.api.delete(url, generation=first, status=204)
    bucket.api.get(url, generation=first, status=404)
    bucket.api.get(url, generation=second)


def test_a_soft_deleted_object_is_neither_listed_nor_restored(bucket: Bucket) -> None:
    bucket.api.patch(bucket.url, {"softDeletePolicy": {"retentionDurationSeconds": "604800"}})
    generation = bucket.put("x", b"1")["generation"]
    bucket.api.delete(f"{bucket.url}/o/x", status=204)
    assert bucket.names() == []
    bucket.api.get(f"{bucket.url}/o", softDeleted="true", status=501)
    bucket.api.get(f"{bucket.url}/o/x", softDeleted="true", generation=generation, status=501)
    bucket.api.post(f"{bucket.url}/o/x/restore", generation=generation, status=501)
    assert bucket.put("x", b"2")["generation"] != generation


def test_a_hold_is_refused(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    refused = bucket.api.patch(f"{bucket.url}/o/x", {"temporaryHold": True}, status=501)
    assert "temporaryHold" in str(refused)


def test_compose_joins_objects_in_order(bucket: Bucket) -> None:
    for name in "abc":
        bucket.put(name, name.encode() * 3)
    body = {
        "sourceObjects": [{"name": name} for name in "cab"],
        "destination": {"contentType": "text/plain"},
    }
    made = bucket.api.post(f"{bucket.url}/o/all/compose", body)
    assert bucket.read("all") == b"cccaaabbb"
    assert made["componentCount"] == 3
    crc32c = google_crc32c.value(b"cccaaabbb").to_bytes(4, "big")
    assert made["crc32c"] == base64.b64encode(crc32c).decode()
    assert "md5Hash" not in made
    again = bucket.api.post(
        f"{bucket.url}/o/all/compose",
        {"sourceObjects": [{"name": "all"}, {"name": "a"}]},
    )
    assert again["componentCount"] == 4
    assert bucket.names() == ["a", "all", "b", "c"]


def test_compose_checks_its_sources(bucket: Bucket) -> None:
    bucket.put("a")
    url = f"{bucket.url}/o/all/compose"
    bucket.api.post(url, {"sourceObjects": [{"name": "a"}, {"name": "b"}]}, status=404)
    stale = {"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}
    bucket.api.post(url, {"sourceObjects": [stale]}, status=412)
    bucket.api.post(url, {"sourceObjects": [{"name": "a"}] * 33}, status=400)
    assert bucket.names() == ["a"]


def test_a_copy_keeps_metadata_unless_it_is_given_other(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    bucket.api.patch(f"{bucket.url}/o/x", {"metadata": {"a": "1"}, "contentType": "text/plain"})
    other = Bucket(bucket.api, "other-bucket")
    done = bucket.api.post(f"{bucket.url}/o/x/rewriteTo/b/{other.name}/o/y")
    assert done["done"] is True
    assert done["resource"]["metadata"] == {"a": "1"}
    assert other.read("y") == b"1"
    changed = bucket.api.post(
        f"{bucket.url}/o/x/copyTo/b/{other.name}/o/z", {"contentType": "image/png"}
    )
    assert changed["contentType"] == "image/png"
    assert "metadata" not in changed


def test_a_copy_outlives_its_source(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    bucket.api.post(f"{bucket.url}/o/x/copyTo/b/{bucket.name}/o/y")
    bucket.api.delete(f"{bucket.url}/o/x", status=204)
    bucket.put("x", b"2")
    assert bucket.read("y") == b"1"


def test_a_move_renames(bucket: Bucket) -> None:
    bucket.put("x", b"1")
    bucket.api.post(f"{bucket.url}/o/x/moveTo/o/y")
    assert bucket.names() == ["y"]
    assert bucket.read("y") == b"1"
