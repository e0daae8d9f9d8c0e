"""Buckets: their methods, settings, IAM policies and locations."""

import re
from dataclasses import asdict, replace
from functools import lru_cache

from localcloud import data
from localcloud.core import access, projects
from localcloud.core.call import Call, Json, Response
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Handler
from localcloud.core.store import POLICY, Record
from localcloud.services import iam_policy
from localcloud.services.storage import api, lifecycle, records, uploads, versions
from localcloud.services.storage.api import API, BUCKETS, Conditions
from localcloud.services.storage.records import Bucket

_PAGE = 1000
_IN_BUCKET = api.bucket_in("bucket")


@API.method("buckets.insert", permission="storage.buckets.create", resources=api.project_in_query)
def insert(cloud: Cloud, call: Call) -> Json:
    """Create a bucket."""
    project = _project(cloud, call)
    name = call.body.get("name") or ""
    records.check_bucket_name(name)
    api.refuse_acl(call)
    if call.flag("enableObjectRetention"):
        raise ApiError(501, "the local cloud does not implement enableObjectRetention")
    wanted = call.sent(WRITABLE)
    # US is Google's own default (cloud.google.com/storage/docs/locations).
    place, place_type = check_location(call.body.get("location") or "US", wanted)
    now = cloud.clock.now()
    settings = _complete(wanted, {}, now)
    if place_type != "region":
        # How fast Google copies between regions (cloud.google.com/storage/docs/turbo-replication).
        settings.setdefault("rpo", "DEFAULT")
    with cloud.store.locked():
        _refuse_taken(cloud, call, name)
        bucket = Bucket(
            name=name,
            project=project,
            project_number=projects.number(project),
            location=place,
            location_type=place_type,
            generation=int(now * 1_000_000),
            metageneration=1,
            created=now,
            updated=now,
            settings=settings,
        )
        api.check_default_key(cloud, bucket, {})
        records.put_bucket(cloud, bucket)
        _create_policy(cloud, bucket)
    return records.bucket_resource(bucket)


@API.method("buckets.list", permission="storage.buckets.list", resources=api.project_in_query)
def _list_buckets(cloud: Cloud, call: Call) -> Json:
    project = _project(cloud, call)
    page: Json = {"kind": "storage#buckets"}
    kind = records.DELETED_BUCKET if call.flag("softDeleted") else records.BUCKET
    limit = min(call.number("maxResults") or _PAGE, _PAGE)
    found = [
        bucket
        for bucket in records.all_buckets(cloud, kind)
        if bucket.project == project
        and bucket.name.startswith(call.arg("prefix"))
        and bucket.name > call.arg("pageToken")
    ]
    if found:
        page["items"] = [records.bucket_resource(bucket) for bucket in found[:limit]]
    if len(found) > limit:
        page["nextPageToken"] = found[limit - 1].name
    return page


@BUCKETS.method("get")
def get(cloud: Cloud, call: Call) -> Json | Response:
    """Return a bucket."""
    bucket = records.require_bucket(cloud, call.params["bucket"])
    if call.flag("softDeleted"):
        raise ApiError(404, "The specified bucket does not exist.")
    tag = records.etag(bucket.metageneration)
    known = call.request.headers.get("If-None-Match", "").strip('"')
    if Conditions.of(call).check_read(bucket) or known == tag:
        return Response(304, headers={"ETag": tag})
    return records.bucket_resource(bucket)


@BUCKETS.method("patch", verb="update")
def _patch(cloud: Cloud, call: Call) -> Json:
    return _change(cloud, call, merge=True)


@BUCKETS.method("update")
def _update(cloud: Cloud, call: Call) -> Json:
    return _change(cloud, call, merge=False)


@BUCKETS.method("delete")
def delete(cloud: Cloud, call: Call) -> None:
    """Delete an empty bucket; it stays soft-deleted with its soft-deleted objects.

    Its name is free at once, so what is kept moves to a name with the generation in it.
    """
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        kinds = (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name))
        if any(cloud.store.keys(kind) for kind in kinds):
            raise ApiError(409, "The bucket you tried to delete is not empty.")
        kept = bucket.soft_delete_seconds > 0
        deleted_key = records.version_key(bucket.name, bucket.generation)
        if kept:
            record = asdict(replace(bucket, soft_deleted=cloud.clock.now()))
            cloud.store.put(records.DELETED_BUCKET, deleted_key, record)
        for key, record in cloud.store.items(records.deleted_kind(bucket.name)):
            cloud.store.delete(records.deleted_kind(bucket.name), key)
            if kept:
                cloud.store.put(records.deleted_kind(deleted_key), key, record)
        uploads.forget(cloud, bucket.name)
        cloud.store.delete(records.BUCKET, bucket.name)
        cloud.store.delete(POLICY, _policy_key(bucket.name))
        versions.Contents(cloud).remove_bucket(bucket.name)


def _project(cloud: Cloud, call: Call) -> str:
    found = projects.find(cloud, call.arg("project"))
    if found is None:
        raise invalid(f"Unknown project id: {call.arg('project')}")
    access.require_service(cloud, found["projectId"], API.service)
    return str(found["projectId"])


def _refuse_taken(cloud: Cloud, call: Call, name: str) -> None:
    """Refuse a name that any project's bucket has; who may see that bucket learns whose it is."""
    taken = records.find_bucket(cloud, name)
    if taken is None:
        return
    if access.has(cloud, call.principal, "storage.buckets.get", (f"projects/{taken.project}",)):
        raise ApiError(
            409,
            "Your previous request to create the named bucket succeeded and you already own it.",
        )
    raise ApiError(
        409,
        "The requested bucket name is not available. The bucket namespace is shared by all users "
        "of the system. Please select a different name and try again.",
    )


def _change(cloud: Cloud, call: Call, *, merge: bool) -> Json:
    """Change a bucket: a PATCH merges, a PUT sets what it leaves out back to its default."""
    body = call.sent(WRITABLE)
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        api.refuse_acl(call, bucket)
        if call.body.get("location", bucket.location).upper() != bucket.location:
            raise invalid(f"A bucket's location cannot be changed; it is {bucket.location}.")
        if merge and not body:
            return records.bucket_resource(bucket)
        now = cloud.clock.now()
        wanted = merged(bucket.settings, body) if merge else body
        changed = replace(
            bucket,
            settings=_complete(wanted, bucket.settings, now),
            metageneration=bucket.metageneration + 1,
            updated=now,
        )
        api.check_default_key(cloud, changed, bucket.settings)
        records.put_bucket(cloud, changed)
    return records.bucket_resource(changed)


# Settings: defaults, changes, and what Google accepts.

WRITABLE = {
    *("autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold"),
    *("encryption", "iamConfiguration", "labels", "lifecycle", "logging", "retentionPolicy"),
    *("rpo", "softDeletePolicy", "storageClass", "versioning", "website"),
}
"""The fields that callers set, not Google."""
_LABEL = re.compile(r"[\w-]{0,63}")
# Soft delete lasts 7 days unless the bucket says otherwise, at most 90; 0 turns it off
# (cloud.google.com/storage/docs/soft-delete).
_SOFT_DELETE = range(7 * 86400, 90 * 86400 + 1)
_DEFAULT_SOFT_DELETE = str(_SOFT_DELETE.start)
# For so long after it was enabled, uniform access can be disabled again.
_UNLOCKED = 90 * 86400


def merged(settings: Json, body: Json) -> Json:
    """Return `settings` after a PATCH: a null deletes, objects are changed field by field.

    Lifecycle rules are replaced as a whole: a list of rules has no names to merge by.
    """
    result = dict(settings)
    for name, value in body.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and name != "lifecycle":
            result[name] = merged(result.get(name) or {}, value)
        else:
            result[name] = value
    return result


def _complete(settings: Json, before: Json, now: float) -> Json:
    """Return `settings` with Google's defaults and time stamps; 400 with everything that is wrong.

    `before` are the settings so far, empty for a new bucket; `now` is in seconds since the epoch.
    """
    moment = rfc3339(now)
    result = merged({}, settings)
    result.setdefault("storageClass", before.get("storageClass", "STANDARD"))
    result["iamConfiguration"] = _access_settings(result, before, now)
    _soft_delete(result, before, moment)
    _note_times(result, before, moment)
    if not result.get("lifecycle", {}).get("rule"):
        result.pop("lifecycle", None)
    for empty in ("labels", "cors", "website", "logging", "billing", "encryption"):
        if not result.get(empty):
            result.pop(empty, None)
    versions.storage_class({}, result["storageClass"])
    if (result.get("autoclass") or {}).get("enabled"):
        # Autoclass starts at STANDARD whatever is requested: docs/autoclass of Cloud Storage.
        result["storageClass"] = "STANDARD"
    problems = [*_label_problems(result.get("labels", {})), *_setting_problems(result)]
    problems += lifecycle.rule_problems(result.get("lifecycle", {}))
    if problems:
        raise invalid("\n".join(problems))
    return result


def _access_settings(settings: Json, before: Json, now: float) -> Json:
    """Return who may open the bucket to the public, and whether policies alone decide.

    Uniform access can be turned off for 90 days after it was turned on; `lockedTime` is their end
    (cloud.google.com/storage/docs/uniform-bucket-level-access).
    """
    iam = dict(settings.get("iamConfiguration") or {})
    # An old name of the same field, which clients still send.
    old_name = iam.pop("bucketPolicyOnly", None)
    uniform = iam.get("uniformBucketLevelAccess") or old_name or {}
    was = before.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {})
    shown: Json = {"enabled": bool(uniform.get("enabled"))}
    if shown["enabled"]:
        shown["lockedTime"] = was.get("lockedTime") or rfc3339(now + _UNLOCKED)
    prevention = iam.get("publicAccessPrevention") or "inherited"
    return {"uniformBucketLevelAccess": shown, "publicAccessPrevention": prevention}


def _soft_delete(settings: Json, before: Json, moment: str) -> None:
    """Complete the policy; its time stays when the same duration is sent again."""
    wanted = settings.get("softDeletePolicy") or {}
    seconds = str(wanted.get("retentionDurationSeconds", _DEFAULT_SOFT_DELETE))
    was = before.get("softDeletePolicy", {})
    policy: Json = {"retentionDurationSeconds": seconds}
    if seconds != "0":
        same = was.get("retentionDurationSeconds") == seconds
        policy["effectiveTime"] = was["effectiveTime"] if same else moment
    settings["softDeletePolicy"] = policy


def _note_times(settings: Json, before: Json, moment: str) -> None:
    """Note since when a retention policy and autoclass are as they are.

    Clients send back what they have read, times included: those are Google's to set, so what came
    is replaced.
    """
    retention = settings.get("retentionPolicy")
    if not retention or not int(retention.get("retentionPeriod") or 0):
        settings.pop("retentionPolicy", None)
    else:
        was = before.get("retentionPolicy") or {}
        retention["retentionPeriod"] = str(retention["retentionPeriod"])
        retention["effectiveTime"] = was.get("effectiveTime", moment)
    autoclass = settings.get("autoclass")
    if autoclass is None:
        return
    was = before.get("autoclass") or {}
    same = bool(was.get("enabled")) == bool(autoclass.get("enabled")) and was
    autoclass["toggleTime"] = was["toggleTime"] if same else moment
    if autoclass.get("enabled"):
        terminal = autoclass.setdefault("terminalStorageClass", "NEARLINE")
        same = was.get("terminalStorageClass") == terminal
        time = was.get("terminalStorageClassUpdateTime") if same else None
        autoclass["terminalStorageClassUpdateTime"] = time or moment


def _label_problems(labels: Json) -> list[str]:
    found = [] if len(labels) <= 64 else [f"A bucket has at most 64 labels, not {len(labels)}."]
    for key, value in labels.items():
        if not key or not key[0].islower() or not _is_label(key) or not _is_label(value):
            found.append(
                f"Invalid label {key}={value}: keys and values have at most 63 lower-case letters, "
                "digits, dashes and underscores, and a key begins with a letter."
            )
    return found


def _is_label(text: str) -> bool:
    return bool(_LABEL.fullmatch(text)) and text == text.lower()


def _setting_problems(settings: Json) -> list[str]:
    found = []
    prevention = settings["iamConfiguration"]["publicAccessPrevention"]
    if prevention not in ("inherited", "enforced"):
        found.append(
            f"Invalid value for publicAccessPrevention: '{prevention}' is neither 'inherited' nor "
            "'enforced'."
        )
    seconds = int(settings["softDeletePolicy"]["retentionDurationSeconds"])
    if seconds and seconds not in _SOFT_DELETE:
        found.append(
            f"Invalid softDeletePolicy.retentionDurationSeconds: {seconds} is neither 0 nor "
            f"between {_SOFT_DELETE.start} (7 days) and {_SOFT_DELETE.stop - 1} (90 days)."
        )
    period = int((settings.get("retentionPolicy") or {}).get("retentionPeriod", 0))
    if not 0 <= period < 100 * 365 * 86400:
        found.append(f"Invalid retentionPolicy.retentionPeriod: {period} is 100 years or more.")
    terminal = (settings.get("autoclass") or {}).get("terminalStorageClass", "NEARLINE")
    if terminal not in ("NEARLINE", "ARCHIVE"):
        found.append(
            f"Invalid autoclass.terminalStorageClass: '{terminal}' is neither NEARLINE nor ARCHIVE."
        )
    return found


# IAM policies.

_PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})
_PROJECT_KINDS = ("projectOwner", "projectEditor", "projectViewer")


def _policy_key(bucket: str) -> str:
    return f"buckets/{bucket}"


def _create_policy(cloud: Cloud, bucket: Bucket) -> None:
    """Give a new bucket the policy that Google gives it.

    By it the basic roles of the project reach into its buckets; roles/owner itself has no
    permission on objects (cloud.google.com/storage/docs/access-control/iam-roles#basic-roles).
    """
    owners = [f"projectEditor:{bucket.project}", f"projectOwner:{bucket.project}"]
    viewers = [f"projectViewer:{bucket.project}"]
    bindings = [
        {"role": f"roles/storage.legacy{kind}{suffix}", "members": members}
        for kind in (("Bucket", "Object") if bucket.uniform_access else ("Bucket",))
        for suffix, members in (("Owner", owners), ("Reader", viewers))
    ]
    _put_policy(cloud, bucket.name, bindings, version=1, revision=1)


@BUCKETS.method("getIamPolicy")
def _get_policy(cloud: Cloud, call: Call) -> Json:
    policy = _policy(cloud, call.params["bucket"])
    asked = call.arg("optionsRequestedPolicyVersion")
    return _policy_resource(call.params["bucket"], iam_policy.shown(policy, asked))


@BUCKETS.method("setIamPolicy")
def set_policy(cloud: Cloud, call: Call) -> Json:
    """Replace a bucket's policy; an `etag` in it must be the one that was read."""
    name = call.params["bucket"]
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, name)
        bindings = _merged_bindings(call.body.get("bindings") or [])
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
            raise ApiError(412, "The etag of the policy does not match: it has changed.")
        # Version 3 is the one with conditions (cloud.google.com/iam/docs/policies#versions).
        conditional = any(binding.get("condition") for binding in bindings)
        _put_policy(cloud, name, bindings, 3 if conditional else 1, revision=policy["revision"] + 1)
        return _policy_resource(name, _policy(cloud, name))


@API.method("buckets.testIamPermissions")
def test_permissions(cloud: Cloud, call: Call) -> Json:
    """Return which of the permissions in the query the caller has."""
    resources = api.resources_of(cloud, call.params["bucket"], call.principal)
    wanted = call.request.query.get("permissions", [])
    held = iam_policy.granted(cloud, call.principal, resources, wanted, "storage")
    return {"kind": "storage#testIamPermissionsResponse"} | held


def _policy(cloud: Cloud, bucket: str) -> Record:
    # The revision makes the etag: a policy that was never set has none yet.
    return {"revision": 0, **access.policy(cloud, _policy_key(bucket))}


def _put_policy(
    cloud: Cloud, bucket: str, bindings: list[Json], version: int, *, revision: int
) -> None:
    record = {"version": version, "etag": records.etag(revision), "revision": revision}
    cloud.store.put(POLICY, _policy_key(bucket), record | {"bindings": bindings})


def _policy_resource(bucket: str, policy: Record) -> Json:
    shown = {name: policy[name] for name in ("version", "etag", "bindings")}
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}", **shown}


def _merged_bindings(bindings: list[Json]) -> list[Json]:
    """Return one binding for each role and condition, in the order they came, members sorted."""
    result: dict[str, Json] = {}
    for binding in bindings:
        condition = binding.get("condition")
        about = f"{binding.get('role')} {sorted((condition or {}).items())}"
        entry = result.setdefault(about, {"role": binding.get("role") or "", "members": []})
        entry["members"] = sorted({*entry["members"], *(binding.get("members") or [])})
        if condition:
            entry["condition"] = condition
    return [binding for binding in result.values() if binding["members"]]


def _refuse_forbidden(bucket: Bucket, bindings: list[Json]) -> None:
    public = any(_PUBLIC & set(binding["members"]) for binding in bindings)
    if public and bucket.public_access_prevented:
        raise ApiError(
            412,
            "The member bindings allUsers and allAuthenticatedUsers are not allowed since public "
            "access prevention is enforced.",
        )
    if any(binding.get("condition") for binding in bindings) and not bucket.uniform_access:
        # While access control lists count too, a condition could be passed by.
        raise ApiError(
            412, "Conditional role bindings take uniform bucket-level access on the bucket."
        )


# Locations (cloud.google.com/storage/docs/locations).


def check_location(location: str, settings: Json) -> tuple[str, str]:
    """Return the location in Google's spelling and its type, such as `US-CENTRAL1` and `region`.

    Google shows locations in capitals, and takes them in any case. A configurable dual-region names
    a continent and two of its regions.
    """
    place = location.upper()
    wider: dict[str, list[str]] = data.load("storage-locations")
    chosen = (settings.get("customPlacementConfig") or {}).get("dataLocations") or []
    if chosen:
        wrong = [region for region in chosen if region.upper() not in _regions()]
        if len(chosen) != 2 or wrong or place not in wider["configurable"]:
            raise _unknown(f"{location} with {', '.join(chosen)}")
        return place, "dual-region"
    if place in _regions():
        return place, "region"
    for kind in ("multi-region", "dual-region"):
        if place in wider[kind]:
            return place, kind
    raise _unknown(location)


@lru_cache(maxsize=1)
def _regions() -> frozenset[str]:
    return frozenset(region.upper() for region in data.load("compute-places"))


def _unknown(location: str) -> Exception:
    return invalid(f"The specified location constraint is not valid: '{location}'.")


# Small methods that clients call in passing. What they list can't be made here, but gcloud and
# Google's provider ask for it before they delete or copy, and an error would stop them.


def _lists_nothing(collection: str, permission: str) -> Handler:
    """Answer the list of a collection in a bucket that is always empty."""

    @API.method(f"{collection}.list", permission=permission, resources=_IN_BUCKET)
    def list_(cloud: Cloud, call: Call) -> Json:
        return {"kind": f"storage#{collection}"}

    return list_


_CACHES = "storage.anywhereCaches.list"
API.raw(
    "GET",
    # Google's provider ends the path with a slash.
    r"/storage/v1/b/(?P<bucket>[^/]+)/anywhereCaches/",
    like="anywhereCaches.list",
    hosts=api.HOSTS,
    permission=_CACHES,
    resources=_IN_BUCKET,
)(_lists_nothing("anywhereCaches", _CACHES))
_lists_nothing("managedFolders", "storage.managedFolders.list")
_lists_nothing("notifications", "storage.buckets.get")


@API.method("buckets.getStorageLayout", permission="storage.objects.list", resources=_IN_BUCKET)
def storage_layout(cloud: Cloud, call: Call) -> Json:
    """Return a bucket's location and that its namespace is flat; gcloud asks before a copy."""
    bucket = records.require_bucket(cloud, call.params["bucket"])
    return {
        "kind": "storage#storageLayout",
        "bucket": bucket.name,
        "location": bucket.location,
        "locationType": bucket.location_type,
        "hierarchicalNamespace": {"enabled": False},
    }


@API.method("projects.serviceAccount.get", permission="resourcemanager.projects.get")
def service_account(cloud: Cloud, call: Call) -> Json:
    """Return the account as which Cloud Storage acts for a project."""
    found = projects.find(cloud, call.project)
    if found is None:
        raise invalid(f"Unknown project id: {call.project}")
    number = found["projectNumber"]
    return {"kind": "storage#serviceAccount", "email_address": api.storage_agent(number)}
