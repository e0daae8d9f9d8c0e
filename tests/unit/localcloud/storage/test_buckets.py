from __future__ import annotations

from typing import Any

import pytest

from localcloud import app
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.core.store import POLICY
from localcloud.services.storage import records
from localcloud.testing import Client
from tests.unit.localcloud.storage.conftest import HOST, Bucket

BUCKETS = f"{HOST}/storage/v1/b"


def create(api: Client, status: int = 200, **body: object) -> dict[str, object]:
    return api.post(BUCKETS, body, status=status, project=DEFAULT_PROJECT)


def test_a_new_bucket_has_googles_defaults(api: Client) -> None:
    made = create(api, name="fresh-bucket")
    assert made["location"] == "US"
    assert made["locationType"] == "multi-region"
    assert made["storageClass"] == "STANDARD"
    assert made["metageneration"] == "1"
    assert made["projectNumber"] == projects.number(DEFAULT_PROJECT)
    assert made["softDeletePolicy"]["retentionDurationSeconds"] == "604800"  # type: ignore[index]
    assert made["iamConfiguration"]["publicAccessPrevention"] == "inherited"  # type: ignore[index]
    assert api.get(f"{BUCKETS}/fresh-bucket") == made


@pytest.mark.parametrize(
    "name",
    [
        "ab",
        "Upper-case",
        "-dash",
        "dash-",
        "a" * 64,
        "192.168.1.1",
        "data.example.com",
        "googbucket",
        "my-google-x",
    ],
)
def test_a_bad_bucket_name_is_refused(api: Client, name: str) -> None:
    assert "Invalid bucket name" in str(create(api, 400, name=name))


def test_creating_your_own_bucket_again_is_a_conflict(api: Client, bucket: Bucket) -> None:
    assert "you already own it" in str(create(api, 409, name=bucket.name))


def test_a_creation_that_breaks_off_can_be_repeated(
    api: Client, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []
    put = cloud.store.put

    def break_off(*record: Any) -> None:
        if written:
            raise OSError("killed")
        written.append(record)
        put(*record)

    with monkeypatch.context() as patched:
        patched.setattr(cloud.store, "put", break_off)
        create(api, 500, name="broken-off")
    assert written
    create(api, name="broken-off")


def test_a_name_taken_by_another_project_is_not_available(
    api: Client, cloud: Cloud, bucket: Bucket
) -> None:
    projects.ensure(cloud, "other-project", owner="user:other@example.com")
    other = api.as_member("user:other@example.com")
    answer = other.post(BUCKETS, {"name": bucket.name}, status=409, project="other-project")
    assert "not available" in str(answer)


@pytest.mark.parametrize("location", ["us-nowhere1", "MARS", "us-central1-a"])
def test_an_unknown_location_is_refused(api: Client, location: str) -> None:
    assert location in str(create(api, 400, name="some-bucket", location=location))


def test_a_regional_bucket_says_so(api: Client) -> None:
    made = create(api, name="some-bucket", location="europe-west4")
    assert (made["location"], made["locationType"]) == ("EUROPE-WEST4", "region")


def test_the_wrong_settings_are_named_all_at_once(api: Client) -> None:
    answer = create(
        api,
        400,
        name="some-bucket",
        labels={"Bad": "x"},
        softDeletePolicy={"retentionDurationSeconds": "60"},
        lifecycle={"rule": [{"action": {"type": "Burn"}, "condition": {"age": 1}}]},
    )
    assert all(word in str(answer) for word in ("Bad=x", "7 days", "'Burn'"))


def test_an_unknown_field_is_refused(api: Client) -> None:
    assert "nonsense" in str(create(api, 400, name="some-bucket", nonsense=1))


@pytest.mark.parametrize(
    "field",
    [
        {"ipFilter": {"mode": "Enabled"}},
        {"iamConfiguration": {"bucketPolicyOnly": {"enabled": True}}},
        {"autoclass": {"enabled": True}},
        {"retentionPolicy": {"retentionPeriod": "3600"}},
        {"defaultEventBasedHold": True},
    ],
)
def test_a_field_that_is_not_implemented_is_refused(api: Client, field: dict[str, object]) -> None:
    assert next(iter(field)) in str(create(api, 501, name="some-bucket", **field))


def test_a_list_that_grants_nothing_more_is_taken_with_a_new_bucket(api: Client) -> None:
    lists: dict[str, Any] = {
        "predefinedAcl": "projectPrivate",
        "predefinedDefaultObjectAcl": "bucketOwnerFullControl",
    }
    api.post(BUCKETS, {"name": "by-gcsfs"}, project=DEFAULT_PROJECT, **lists)
    lists["predefinedAcl"] = "publicRead"
    api.post(BUCKETS, {"name": "other"}, project=DEFAULT_PROJECT, status=501, **lists)


def test_a_patch_changes_only_what_it_names(api: Client, bucket: Bucket) -> None:
    api.patch(bucket.url, {"labels": {"a": "1", "b": "2"}, "versioning": {"enabled": True}})
    changed = api.patch(bucket.url, {"labels": {"a": None}})
    assert changed["labels"] == {"b": "2"}
    assert changed["versioning"] == {"enabled": True}
    assert changed["metageneration"] == "3"


def test_a_bucket_does_not_move(api: Client, bucket: Bucket) -> None:
    assert "location" in str(api.patch(bucket.url, {"location": "EU"}, status=400))


def test_metageneration_preconditions_hold_for_buckets(api: Client, bucket: Bucket) -> None:
    api.patch(bucket.url, {"labels": {"a": "b"}}, ifMetagenerationMatch=1)
    api.patch(bucket.url, {"labels": {"a": "c"}}, ifMetagenerationMatch=1, status=412)
    api.get(bucket.url, ifMetagenerationNotMatch=2, status=304)
    api.delete(bucket.url, ifMetagenerationMatch=1, status=412)


def test_a_bucket_with_objects_is_not_deleted(api: Client, bucket: Bucket) -> None:
    bucket.put("object")
    assert "not empty" in str(api.delete(bucket.url, status=409))
    api.delete(f"{bucket.url}/o/object", status=204)
    api.delete(bucket.url, status=204)
    assert "does not exist" in str(api.get(bucket.url, status=404))


def test_a_bucket_with_noncurrent_versions_is_not_deleted(api: Client, bucket: Bucket) -> None:
    api.patch(bucket.url, {"versioning": {"enabled": True}})
    bucket.put("object")
    api.delete(f"{bucket.url}/o/object", status=204)
    api.delete(bucket.url, status=409)


def test_objects_of_a_deleted_bucket_count_until_soft_delete_ends(
    api: Client, cloud: Cloud, clock: VirtualClock
) -> None:
    bucket = Bucket(api, softDeletePolicy={"retentionDurationSeconds": "604800"})
    bucket.put("object", b"12345")
    bucket.put("object", b"123")
    assert app.soft_deleted_bytes(cloud) == 5
    api.delete(f"{bucket.url}/o/object", status=204)
    api.delete(bucket.url, status=204)
    assert app.soft_deleted_bytes(cloud) == 8
    api.get(bucket.url, status=404)
    # The name is free at once.
    Bucket(api)
    clock.advance(8 * 86400)
    assert app.soft_deleted_bytes(cloud) == 0


def test_nothing_of_a_deleted_bucket_stays_behind(api: Client, cloud: Cloud) -> None:
    bucket = Bucket(api, softDeletePolicy={"retentionDurationSeconds": "0"})
    bucket.put("object")
    bucket.api.session.post(
        bucket.upload_url, params={"uploadType": "resumable", "name": "half"}, timeout=30
    )
    api.delete(f"{bucket.url}/o/object", status=204)
    api.delete(bucket.url, status=204)
    kinds = [records.live_kind(bucket.name), records.noncurrent_kind(bucket.name)]
    kinds += [records.BUCKET, records.DELETED, records.UPLOAD]
    assert not any(map(cloud.store.has, kinds))
    assert not [path for path in (cloud.home / "objects").rglob("*") if path.is_file()]
    assert cloud.store.get(POLICY, f"buckets/{bucket.name}") is None


def test_buckets_are_listed_by_project_in_pages(api: Client, cloud: Cloud) -> None:
    for name in ("bucket-c", "bucket-a", "bucket-b"):
        create(api, name=name)
    first = api.get(BUCKETS, project=DEFAULT_PROJECT, maxResults=2)
    assert [item["name"] for item in first["items"]] == ["bucket-a", "bucket-b"]
    token = first["nextPageToken"]
    second = api.get(BUCKETS, project=DEFAULT_PROJECT, maxResults=2, pageToken=token)
    assert [item["name"] for item in second["items"]] == ["bucket-c"]
    assert "nextPageToken" not in second
    named = api.get(BUCKETS, project=DEFAULT_PROJECT, prefix="bucket-b")
    assert [item["name"] for item in named["items"]] == ["bucket-b"]


def test_a_project_that_one_has_no_role_in_is_closed(api: Client) -> None:
    stranger = api.as_member("user:stranger@example.com")
    stranger.get(BUCKETS, project=DEFAULT_PROJECT, status=403)
    stranger.post(BUCKETS, {"name": "some-bucket"}, project=DEFAULT_PROJECT, status=403)


def test_lists_of_unsupported_bucket_resources_are_empty(api: Client, bucket: Bucket) -> None:
    assert "items" not in api.get(f"{bucket.url}/anywhereCaches")
    assert "items" not in api.get(f"{bucket.url}/anywhereCaches/")
    assert "items" not in api.get(f"{bucket.url}/notificationConfigs")
    assert "items" not in api.get(f"{bucket.url}/managedFolders")
    assert api.get(f"{bucket.url}/storageLayout")["locationType"] == "region"


def test_a_project_has_a_storage_service_account(api: Client) -> None:
    found = api.get(f"{HOST}/storage/v1/projects/{DEFAULT_PROJECT}/serviceAccount")
    number = projects.number(DEFAULT_PROJECT)
    assert found["email_address"].startswith(f"service-{number}@gs-project-accounts.")


def test_an_empty_patch_changes_nothing(api: Client, bucket: Bucket) -> None:
    before = api.get(f"{BUCKETS}/{bucket.name}")
    assert api.patch(f"{BUCKETS}/{bucket.name}", {}) == before
    assert api.patch(f"{BUCKETS}/{bucket.name}", {"labels": {"a": "b"}})["metageneration"] == "2"
