from __future__ import annotations

import pytest
import requests

from localcloud.core import access
from localcloud.core.cloud import Cloud
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.core.store import POLICY
from localcloud.services import iam_policy
from localcloud.testing import Client, session
from tests.unit.localcloud.storage.conftest import HOST, Bucket

TRAINER = "user:trainer@example.com"
READ_ONLY = "https://www.googleapis.com/auth/devstorage.read_only"


def grant(bucket: Bucket, role: str, *members: str, status: int = 200) -> None:
    policy = bucket.api.get(f"{bucket.url}/iam")
    policy["bindings"].append({"role": role, "members": list(members)})
    bucket.api.put(f"{bucket.url}/iam", policy, status=status)


def test_a_new_bucket_has_googles_policy(cloud: Cloud, bucket: Bucket) -> None:
    policy = bucket.api.get(f"{bucket.url}/iam")
    assert policy["resourceId"] == f"projects/_/buckets/{bucket.name}"
    roles = [binding["role"] for binding in policy["bindings"]]
    assert roles == ["roles/storage.legacyBucketOwner", "roles/storage.legacyBucketReader"]
    assert cloud.store.get(POLICY, f"buckets/{bucket.name}") is not None


def test_editors_and_viewers_of_the_project_have_their_rights(cloud: Cloud, api: Client) -> None:
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}
    bucket = Bucket(api, iamConfiguration=uniform)
    bucket.put("one", b"1")
    project = access.policy(cloud, f"projects/{DEFAULT_PROJECT}")
    project["bindings"] += [
        {"role": "roles/editor", "members": ["user:editor@example.com"]},
        {"role": "roles/viewer", "members": ["user:viewer@example.com"]},
    ]
    iam_policy.write(cloud, f"projects/{DEFAULT_PROJECT}", {"policy": project})
    viewer = api.as_member("user:viewer@example.com")
    viewer.get(f"{bucket.url}/o/one")
    viewer.delete(f"{bucket.url}/o/one", status=403)
    api.as_member("user:editor@example.com").delete(f"{bucket.url}/o/one", status=204)


def test_a_stale_etag_is_refused(bucket: Bucket) -> None:
    old = bucket.api.get(f"{bucket.url}/iam")
    grant(bucket, "roles/storage.objectViewer", TRAINER)
    bucket.api.put(f"{bucket.url}/iam", old, status=412)


def test_a_viewer_reads_and_lists_but_does_not_write(bucket: Bucket) -> None:
    bucket.put("data/one", b"1")
    viewer = bucket.api.as_member(TRAINER)
    viewer.get(f"{bucket.url}/o/data%2Fone", status=403)
    grant(bucket, "roles/storage.objectViewer", TRAINER)
    viewer.get(f"{bucket.url}/o/data%2Fone")
    assert viewer.get(f"{bucket.url}/o")["items"]
    viewer.delete(f"{bucket.url}/o/data%2Fone", status=403)
    viewer.get(bucket.url, status=403)
    refused = viewer.session.post(
        bucket.upload_url, params={"uploadType": "media", "name": "x"}, data=b"x", timeout=30
    )
    assert refused.status_code == 403
    assert "storage.objects.create" in refused.text


def test_a_creator_adds_objects_but_replaces_none(bucket: Bucket) -> None:
    grant(bucket, "roles/storage.objectCreator", TRAINER)
    creator = bucket.api.as_member(TRAINER).session
    params = {"uploadType": "media", "name": "log"}
    assert creator.post(bucket.upload_url, params=params, data=b"1", timeout=30).ok
    again = creator.post(bucket.upload_url, params=params, data=b"2", timeout=30)
    assert again.status_code == 403
    assert "storage.objects.delete" in again.text
    assert bucket.read("log") == b"1"


def test_a_resumable_upload_needs_the_starters_permission_at_its_end(bucket: Bucket) -> None:
    grant(bucket, "roles/storage.objectCreator", TRAINER)
    params = {"uploadType": "resumable", "name": "log"}
    started = bucket.api.as_member(TRAINER).session.post(
        bucket.upload_url, params=params, timeout=30
    )
    bucket.put("log", b"first")
    ended = bucket.api.session.put(started.headers["Location"], data=b"second", timeout=30)
    assert ended.status_code == 403
    assert bucket.read("log") == b"first"


def test_missing_objects_are_403_without_permission_to_list(bucket: Bucket) -> None:
    grant(bucket, "roles/storage.legacyObjectReader", TRAINER)
    bucket.api.as_member(TRAINER).get(f"{bucket.url}/o/nothing", status=403)
    bucket.api.get(f"{bucket.url}/o/nothing", status=404)


def test_a_token_without_a_storage_scope_is_refused(bucket: Bucket) -> None:
    other = bucket.api.as_member(
        "user:developer@tpu-stack.local", "https://www.googleapis.com/auth/monitoring"
    )
    answer = other.get(bucket.url, status=403)
    assert answer["error"]["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


def test_a_read_only_scope_reads_and_writes_nothing(bucket: Bucket) -> None:
    bucket.put("one", b"1")
    member = "user:developer@tpu-stack.local"
    reader = bucket.api.as_member(member, READ_ONLY)
    reader.get(f"{bucket.url}/o/one")
    assert reader.session.get(f"{HOST}/{bucket.name}/one", timeout=30).content == b"1"
    reader.delete(f"{bucket.url}/o/one", status=403)
    put = reader.session.put(f"{HOST}/{bucket.name}/two", data=b"2", timeout=30)
    assert put.status_code == 403


def anonymous(bucket: Bucket) -> requests.Session:
    return session(bucket.api.local_cloud, "")


def test_anonymous_reads_need_a_grant_to_allusers(bucket: Bucket) -> None:
    bucket.put("one", b"1")
    url = f"{HOST}/{bucket.name}/one"
    assert anonymous(bucket).get(url, timeout=30).status_code == 401
    grant(bucket, "roles/storage.objectViewer", "allUsers")
    assert anonymous(bucket).get(url, timeout=30).content == b"1"


def test_public_access_prevention_refuses_and_outweighs_public_members(bucket: Bucket) -> None:
    bucket.put("one", b"1")
    grant(bucket, "roles/storage.objectViewer", "allUsers")
    enforced = {"iamConfiguration": {"publicAccessPrevention": "enforced"}}
    bucket.api.patch(bucket.url, enforced)
    url = f"{HOST}/{bucket.name}/one"
    assert anonymous(bucket).get(url, timeout=30).status_code == 401
    grant(bucket, "roles/storage.objectViewer", "allAuthenticatedUsers", status=412)


@pytest.mark.parametrize(
    ("binding", "word"),
    [
        ({"role": "roles/storage.nonsense", "members": [TRAINER]}, "not supported"),
        (
            {"role": "roles/storage.objectViewer", "members": ["trainer"]},
            "Invalid value for member trainer",
        ),
        (
            {
                "role": "roles/storage.objectViewer",
                "members": ["serviceAccount:nobody@tpu-stack-local.iam.gserviceaccount.com"],
            },
            "does not exist",
        ),
    ],
)
def test_a_bad_binding_is_refused(bucket: Bucket, binding: dict[str, object], word: str) -> None:
    answer = bucket.api.put(f"{bucket.url}/iam", {"bindings": [binding]}, status=400)
    assert word in str(answer)


def test_permissions_are_tested_for_the_caller(bucket: Bucket) -> None:
    grant(bucket, "roles/storage.objectViewer", TRAINER)
    wanted = ["storage.objects.get", "storage.objects.delete"]
    url = f"{bucket.url}/iam/testPermissions"
    member = bucket.api.as_member(TRAINER)
    assert member.get(url, permissions=wanted)["permissions"] == ["storage.objects.get"]
    assert bucket.api.get(url, permissions=wanted)["permissions"] == wanted
    stranger: Client = bucket.api.as_member("user:stranger@example.com")
    assert "permissions" not in stranger.get(url, permissions=wanted)


def test_access_control_lists_are_refused_clearly(bucket: Bucket) -> None:
    for name in ("publicRead", "private"):
        refused = bucket.send("x", predefinedAcl=name)
        assert (refused.status_code, "access control lists" in refused.text) == (501, True)


def test_a_condition_on_the_name_lets_write_below_a_prefix_alone(api: Client) -> None:
    """However the name comes along; a list is an access to the bucket."""
    bucket = Bucket(api, iamConfiguration={"uniformBucketLevelAccess": {"enabled": True}})
    prefix = f"projects/_/buckets/{bucket.name}/objects/mine/"
    below = (
        f"resource.type == 'storage.googleapis.com/Object' && resource.name.startsWith('{prefix}')"
    )
    policy = api.get(f"{bucket.url}/iam")
    policy["bindings"].append(
        {
            "role": "roles/storage.objectUser",
            "members": [TRAINER],
            "condition": {"title": "mine", "expression": below},
        }
    )
    assert "version 3" in str(api.put(f"{bucket.url}/iam", policy, status=400))
    api.put(f"{bucket.url}/iam", {**policy, "version": 3})
    trainer = api.as_member(TRAINER)
    for name, status in (("mine/one", 200), ("one", 403), ("mine", 403)):
        for query in ({"uploadType": "media", "name": name}, {"uploadType": "resumable"}):
            url = bucket.url.replace("/storage/v1", "/upload/storage/v1")
            body = {"name": name} if query["uploadType"] == "resumable" else {}
            trainer.post(f"{url}/o", body, status=status, **query)
    trainer.get(f"{bucket.url}/o/mine%2Fone")
    trainer.get(f"{bucket.url}/o/one", status=403)
    trainer.get(f"{bucket.url}/o", status=403)
