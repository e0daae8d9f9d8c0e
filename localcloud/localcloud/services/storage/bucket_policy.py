"""The IAM policies of buckets."""

from __future__ import annotations

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.store import POLICY, Record
from localcloud.services import iam_policy
from localcloud.services.storage import api, records, render
from localcloud.services.storage.api import API, BUCKETS
from localcloud.services.storage.records import Bucket

_PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})
_PROJECT_KINDS = ("projectOwner", "projectEditor", "projectViewer")


def key(bucket: str) -> str:
    """Return the key of a bucket's policy in the store."""
    return f"buckets/{bucket}"


def create(cloud: Cloud, bucket: Bucket) -> None:
    """Give a new bucket the policy that Google gives it."""
    owners = [f"projectEditor:{bucket.project}", f"projectOwner:{bucket.project}"]
    viewers = [f"projectViewer:{bucket.project}"]
    bindings = [
        {"role": "roles/storage.legacyBucketOwner", "members": owners},
        {"role": "roles/storage.legacyBucketReader", "members": viewers},
    ]
    if bucket.uniform_access:
        bindings += [
            {"role": "roles/storage.legacyObjectOwner", "members": owners},
            {"role": "roles/storage.legacyObjectReader", "members": viewers},
        ]
    _put(cloud, bucket.name, bindings, version=1, revision=1)


@BUCKETS.method("getIamPolicy")
def get(cloud: Cloud, call: Call) -> Json:
    """Return a bucket's policy."""
    policy = _policy(cloud, call.params["bucket"])
    asked = call.arg("optionsRequestedPolicyVersion")
    return _shown(call.params["bucket"], iam_policy.shown(policy, asked))


@BUCKETS.method("setIamPolicy")
def set_policy(cloud: Cloud, call: Call) -> Json:
    """Replace a bucket's policy; an `etag` in it must be the one that was read."""
    name = call.params["bucket"]
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, name)
        bindings = _merged(call.body.get("bindings") or [])
        policy = _policy(cloud, name)
        iam_policy.require_version(call.body, bindings, policy["bindings"])
        for binding in bindings:
            kinds = (*iam_policy.KINDS, *_PROJECT_KINDS)
            iam_policy.check(cloud, binding, kinds, ("resource",))
        _refuse_forbidden(bucket, bindings)
        resources = BUCKETS.resources(cloud, call)
        right = "storage.buckets.setIamPolicy"
        iam_policy.require_modified(cloud, call, right, resources, policy["bindings"], bindings)
        if call.body.get("etag") and call.body["etag"] != policy["etag"]:
            raise ApiError(412, "The etag of the policy does not match: it was changed meanwhile.")
        conditional = any(binding.get("condition") for binding in bindings)
        _put(cloud, name, bindings, 3 if conditional else 1, revision=policy["revision"] + 1)
        return _shown(name, _policy(cloud, name))


@API.method("buckets.testIamPermissions")
def test_permissions(cloud: Cloud, call: Call) -> Json:
    """Return those of the permissions in the query that the caller has."""
    resources = api.resources_of(cloud, call.params["bucket"], call.principal)
    wanted = call.request.query.get("permissions", [])
    held = iam_policy.granted(cloud, call.principal, resources, wanted, "storage")
    return {"kind": "storage#testIamPermissionsResponse"} | held


def _policy(cloud: Cloud, bucket: str) -> Record:
    return {"revision": 0, **access.policy(cloud, key(bucket))}


def _put(cloud: Cloud, bucket: str, bindings: list[Json], version: int, *, revision: int) -> None:
    record = {
        "version": version,
        "etag": render.etag(revision),
        "revision": revision,
        "bindings": bindings,
    }
    cloud.store.put(POLICY, key(bucket), record)


def _shown(bucket: str, policy: Record) -> Json:
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{bucket}",
        "version": policy["version"],
        "etag": policy["etag"],
        "bindings": policy["bindings"],
    }


def _merged(bindings: list[Json]) -> list[Json]:
    """Return one binding for each role and condition, in the order they came, members sorted."""
    merged: dict[str, Json] = {}
    for binding in bindings:
        condition = binding.get("condition")
        about = f"{binding.get('role')} {sorted((condition or {}).items())}"
        entry = merged.setdefault(about, {"role": binding.get("role") or "", "members": []})
        entry["members"] = sorted({*entry["members"], *(binding.get("members") or [])})
        if condition:
            entry["condition"] = condition
    return [binding for binding in merged.values() if binding["members"]]


def _refuse_forbidden(bucket: Bucket, bindings: list[Json]) -> None:
    public = any(_PUBLIC & set(binding["members"]) for binding in bindings)
    if public and bucket.public_access_prevented:
        raise ApiError(
            412,
            "The member bindings allUsers and allAuthenticatedUsers are not allowed since public "
            "access prevention is enforced.",
        )
    if any(binding.get("condition") for binding in bindings) and not bucket.uniform_access:
        raise ApiError(
            412, "Conditional role bindings take uniform bucket-level access on the bucket."
        )
