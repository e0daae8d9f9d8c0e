"""Buckets: their methods, settings, IAM policies, locations, and the rules for old objects."""

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from localcloud import data
from localcloud.core import ApiError, Cloud, access, invalid, projects, rfc3339
from localcloud.core.call import Call, Json, Response, page
from localcloud.core.cloud import cloud_started
from localcloud.core.registry import Handler
from localcloud.core.store import POLICY, Record
from localcloud.services import iam_policy
from localcloud.services.storage import api, records, versions
from localcloud.services.storage.api import API, BUCKETS, Conditions
from localcloud.services.storage.records import Bucket, Version

log = logging.getLogger(__name__)
_IN_BUCKET = api.bucket_in("bucket")


@API.method("buckets.insert", permission="storage.buckets.create", resources=api.project_in_query)
def insert(cloud: Cloud, call: Call) -> Json:
    """Create a bucket."""
    project = _project(cloud, call)
    name = call.body.get("name") or ""
    records.check_bucket_name(name)
    # The policy of a new bucket is what `projectPrivate` asks for; gcsfs sends both.
    api.refuse_unserved(call, "projectPrivate", "bucketOwnerFullControl")
    if call.flag("enableObjectRetention"):
        raise ApiError(501, "the local cloud does not implement enableObjectRetention")
    # US is Google's own default (cloud.google.com/storage/docs/locations).
    place, place_type = check_location(call.body.get("location") or "US")
    now = cloud.clock.now()
    settings = _complete(call.sent(WRITABLE), {}, now)
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
    api.refuse_soft_deleted(call)
    found = [
        records.bucket_resource(bucket)
        for bucket in records.all_buckets(cloud)
        if bucket.project == project and bucket.name.startswith(call.arg("prefix"))
    ]
    return {"kind": "storage#buckets"} | page(call, "items", found, size=1000)


@BUCKETS.method("get")
def get(cloud: Cloud, call: Call) -> Json | Response:
    """Return a bucket."""
    api.refuse_soft_deleted(call)
    bucket = records.require_bucket(cloud, call.params["bucket"])
    if Conditions.of(call).check_read(bucket):
        return Response(304)
    return records.bucket_resource(bucket)


@BUCKETS.method("delete")
def delete(cloud: Cloud, call: Call) -> None:
    """Delete an empty bucket; its name is free at once."""
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        kinds = (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name))
        if any(map(cloud.store.has, kinds)):
            raise ApiError(409, "The bucket you tried to delete is not empty.")
        for upload, record in cloud.store.items(records.UPLOAD):
            if record["bucket"] == bucket.name:
                versions.discard_upload(cloud, upload)
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
    taken = cloud.store.get(records.BUCKET, name)
    if taken is None:
        return
    if access.has(cloud, call.principal, "storage.buckets.get", (f"projects/{taken['project']}",)):
        raise ApiError(
            409,
            "Your previous request to create the named bucket succeeded and you already own it.",
        )
    raise ApiError(
        409,
        "The requested bucket name is not available. The bucket namespace is shared by all users "
        "of the system. Please select a different name and try again.",
    )


@BUCKETS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change those settings of a bucket that the body names."""
    body = call.sent(WRITABLE)
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        api.refuse_unserved(call)
        if call.body.get("location", bucket.location).upper() != bucket.location:
            raise invalid(f"A bucket's location cannot be changed; it is {bucket.location}.")
        if not body:
            return records.bucket_resource(bucket)
        now = cloud.clock.now()
        changed = replace(
            bucket,
            settings=_complete(merged(bucket.settings, body), bucket.settings, now),
            metageneration=bucket.metageneration + 1,
            updated=now,
        )
        api.check_default_key(cloud, changed, bucket.settings)
        records.put_bucket(cloud, changed)
    return records.bucket_resource(changed)


# Settings: defaults, changes, and what Google accepts.

WRITABLE = {
    *("encryption", "iamConfiguration", "labels", "lifecycle", "softDeletePolicy"),
    *("storageClass", "versioning"),
}
"""The fields that callers set, not Google."""
_LABEL = re.compile(r"[\w-]{0,63}")
# Soft delete lasts 7 days unless the bucket says otherwise, at most 90; 0 turns it off
# (cloud.google.com/storage/docs/soft-delete).
_SOFT_DELETE = range(7 * 86400, 90 * 86400 + 1)
_DEFAULT_SOFT_DELETE = str(_SOFT_DELETE.start)


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
    result = merged({}, settings)
    result.setdefault("storageClass", before.get("storageClass", "STANDARD"))
    result["iamConfiguration"] = _access_settings(result)
    _soft_delete(result, before, rfc3339(now))
    if not result.get("lifecycle", {}).get("rule"):
        result.pop("lifecycle", None)
    for empty in ("labels", "encryption"):
        if not result.get(empty):
            result.pop(empty, None)
    versions.storage_class({}, result["storageClass"])
    problems = [*_label_problems(result.get("labels", {})), *_setting_problems(result)]
    problems += _rules_problems(result.get("lifecycle", {}))
    if problems:
        raise invalid("\n".join(problems))
    return result


def _access_settings(settings: Json) -> Json:
    """Return who may open the bucket to the public, and whether policies alone decide."""
    iam = settings.get("iamConfiguration") or {}
    uniform = (iam.get("uniformBucketLevelAccess") or {}).get("enabled")
    return {
        "uniformBucketLevelAccess": {"enabled": bool(uniform)},
        "publicAccessPrevention": iam.get("publicAccessPrevention") or "inherited",
    }


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
    return found


# IAM policies.


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
    iam_policy.put(cloud, _policy_key(bucket.name), bindings)


@BUCKETS.method("getIamPolicy")
def _get_policy(cloud: Cloud, call: Call) -> Json:
    name = call.params["bucket"]
    asked = call.arg("optionsRequestedPolicyVersion")
    return _policy_resource(name, iam_policy.shown(access.policy(cloud, _policy_key(name)), asked))


@BUCKETS.method("setIamPolicy")
def set_policy(cloud: Cloud, call: Call) -> Json:
    """Replace a bucket's policy; an `etag` in it must be the one that was read."""
    name = call.params["bucket"]
    key, bindings = _policy_key(name), call.body.get("bindings") or []
    with cloud.store.locked():
        bucket, known = records.require_bucket(cloud, name), access.policy(cloud, key)
        _refuse_forbidden(bucket, bindings)
        resources = BUCKETS.resources(cloud, call)
        right = "storage.buckets.setIamPolicy"
        iam_policy.require_modified(cloud, call, right, resources, known["bindings"], bindings)
        return _policy_resource(name, iam_policy.write(cloud, key, call.body))


@API.method("buckets.testIamPermissions")
def test_permissions(cloud: Cloud, call: Call) -> Json:
    """Return which of the permissions in the query the caller has."""
    resources = api.resources_of(cloud, call.params["bucket"], call.principal)
    wanted = call.request.query.get("permissions", [])
    held = iam_policy.granted(cloud, call.principal, resources, wanted, "storage")
    return {"kind": "storage#testIamPermissionsResponse"} | held


def _policy_resource(bucket: str, policy: Record) -> Json:
    return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}", **policy}


def _refuse_forbidden(bucket: Bucket, bindings: list[Json]) -> None:
    public = any(iam_policy.PUBLIC & set(binding.get("members") or ()) for binding in bindings)
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


def check_location(location: str) -> tuple[str, str]:
    """Return the location in Google's spelling and its type, such as `US-CENTRAL1` and `region`.

    Google shows locations in capitals, and takes them in any case.
    """
    place = location.upper()
    if location.lower() in data.load("compute-places"):
        return place, "region"
    for kind, places in data.load("storage-locations").items():
        if place in places:
            return place, kind
    raise invalid(f"The specified location constraint is not valid: '{location}'.")


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


# Lifecycle rules, and the hourly rounds that apply them and purge what was soft-deleted.
# Sources: cloud.google.com/storage/docs/lifecycle (which actions and conditions there are, and that
# all conditions of a rule must hold) and …/lifecycle-configurations (their limits).

_INTERVAL = 3600.0
"""Seconds between two rounds; Google's take up to a day to act on a rule."""


@cloud_started
def start(cloud: Cloud) -> None:
    """Clean up after a killed emulator, and start the rounds."""
    _settle(cloud)
    _collect(cloud)
    _round(cloud)


def apply_rules(cloud: Cloud) -> int:
    """Do now what the rounds do; return how many versions and uploads changed."""
    changed = 0
    for upload, record in cloud.store.items(records.UPLOAD):
        # A finished one stays for its week, too: a client that lost the last answer asks again.
        if record["created"] + versions.UPLOAD_LIFETIME <= cloud.clock.now():
            versions.discard_upload(cloud, upload)
            changed += record["generation"] is None
    for bucket in records.all_buckets(cloud):
        rules = bucket.settings.get("lifecycle", {}).get("rule", [])
        with cloud.store.locked():
            changed += sum(_apply_rule(cloud, bucket, rule) for rule in rules)
    for key, record in cloud.store.items(records.DELETED):
        if record["until"] <= cloud.clock.now():
            cloud.store.delete(records.DELETED, key)
            changed += 1
    return changed


def _round(cloud: Cloud) -> None:
    changed = apply_rules(cloud)
    if changed:
        log.info("lifecycle and expiry changed %d objects", changed)
    cloud.clock.at(cloud.clock.now() + _INTERVAL, lambda: _round(cloud))


def _settle(cloud: Cloud) -> None:
    """Undo a deletion that was interrupted: the object is still live."""
    buckets = records.all_buckets(cloud)
    kinds = [(f"{bucket.name}/", records.noncurrent_kind(bucket.name)) for bucket in buckets]
    for prefix, kind in [*kinds, ("", records.DELETED)]:
        for key in cloud.store.keys(kind):
            path, generation = records.split_key(prefix + key)
            bucket, _, name = path.partition("/")
            live = records.load(cloud, records.live_kind(bucket), name)
            if live is not None and live.generation == generation:
                cloud.store.delete(kind, key)


def _collect(cloud: Cloud) -> None:
    """Delete the files that no record names, which a killed emulator may leave."""
    used: dict[str, set[str]] = defaultdict(set)
    for bucket in records.all_buckets(cloud):
        for kind in (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name)):
            used[bucket.name] |= {record["content"] for _, record in cloud.store.items(kind)}
    kept = set(cloud.store.keys(records.UPLOAD))
    removed = versions.Contents(cloud).collect(used, kept)
    if removed:
        log.info("removed %d files of unfinished uploads and deletions", removed)


def _apply_rule(cloud: Cloud, bucket: Bucket, rule: Json) -> int:
    action, condition = rule["action"], rule["condition"]
    changed = 0
    now = cloud.clock.now()
    for version, newer in _versions(cloud, bucket):
        if not _matches(condition, version, newer, now):
            continue
        if action["type"] == "SetStorageClass":
            changed += _set_class(cloud, bucket, version, action["storageClass"])
        else:
            versions.delete(cloud, bucket, version)
            changed += 1
    return changed


def _versions(cloud: Cloud, bucket: Bucket) -> Iterator[tuple[Version, int]]:
    """Yield all live and noncurrent versions, each with how many newer ones there are."""
    by_name: dict[str, list[Version]] = defaultdict(list)
    for kind in (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name)):
        for _, record in cloud.store.items(kind):
            version = Version(**record)
            by_name[version.name].append(version)
    # Nothing is yielded before all are read: a deletion must not change how many newer ones count.
    for found in by_name.values():
        found.sort(key=lambda version: -version.generation)
        for newer, version in enumerate(found):
            yield version, newer


def _set_class(cloud: Cloud, bucket: Bucket, version: Version, storage_class: str) -> int:
    # Or every round would raise its metageneration, on which clients set conditions.
    if version.storage_class == storage_class:
        return 0
    moved = replace(
        version,
        storage_class=storage_class,
        class_updated=cloud.clock.now(),
        metageneration=version.metageneration + 1,
    )
    records.replace_version(cloud, moved)
    return 1


# Rules: which are valid, and which versions they match. Of Google's conditions those are here that
# a stack can set; the others are refused by name when a bucket is to have them.

_DAY = 86400.0
_ACTIONS = ("Delete", "SetStorageClass")
_COUNTS = ("age", "daysSinceNoncurrentTime", "numNewerVersions")
_CONDITIONS = (*_COUNTS, "isLive", "matchesPrefix", "matchesSuffix")


def _rules_problems(lifecycle: Json) -> list[str]:
    """Return what Google would refuse about a bucket's `lifecycle`, one sentence each.

    Raises ApiError: 501 for a condition that the local cloud does not know.
    """
    rules = lifecycle.get("rule") or []
    found = [] if len(rules) <= 100 else [f"A bucket has at most 100 rules, not {len(rules)}."]
    for index, rule in enumerate(rules):
        for problem in _rule_problems(rule):
            found.append(f"Invalid lifecycle.rule[{index}]: {problem}.")
    return found


def _matches(condition: Json, version: Version, newer: int, now: float) -> bool:
    """Return whether a version meets all conditions of a valid rule.

    `newer` is the number of newer versions of the same object, `now` in seconds since the epoch.
    """
    since = version.noncurrent_since
    holds: dict[str, Callable[[Any], bool]] = {
        "age": lambda days: now >= version.created + days * _DAY,
        # A live version has no such time, so that the condition never holds.
        "daysSinceNoncurrentTime": lambda days: since is not None and now >= since + days * _DAY,
        "numNewerVersions": lambda number: newer >= number,
        "isLive": lambda live: (since is None) == live,
        "matchesPrefix": lambda texts: not texts or version.name.startswith(tuple(texts)),
        "matchesSuffix": lambda texts: not texts or version.name.endswith(tuple(texts)),
    }
    return all(
        holds[name](value)
        for name, value in condition.items()
        if name in holds and value is not None
    )


def _rule_problems(rule: Json) -> Iterator[str]:
    action, condition = rule.get("action") or {}, rule.get("condition") or {}
    kind = action.get("type")
    sent = {name for name, value in condition.items() if value is not None}
    # Google's provider sends those that are not set as 0, an empty text or an empty list.
    if unknown := sorted(name for name in sent.difference(_CONDITIONS) if condition[name]):
        raise ApiError(501, f"the local cloud does not implement {', '.join(unknown)} of rules")
    if kind not in _ACTIONS:
        yield f"action type '{kind}' is not one of {', '.join(_ACTIONS)}"
    if kind == "SetStorageClass" and action.get("storageClass") not in versions.STORAGE_CLASSES:
        yield f"storage class '{action.get('storageClass')}' does not exist"
    if kind != "SetStorageClass" and action.get("storageClass"):
        yield f"action {kind} takes no storageClass"
    if not sent.intersection(_CONDITIONS):
        yield "it has no condition"
    for name in _COUNTS:
        if (condition.get(name) or 0) < 0:
            yield f"{name} must not be negative"
