"""Methods on buckets."""

from __future__ import annotations

from dataclasses import asdict, replace

from localcloud.core import access, projects
from localcloud.core.call import Call, Json, Response
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import POLICY
from localcloud.services.storage import (
    bucket_policy,
    bucket_settings,
    encryption,
    locations,
    records,
    render,
    resumable,
)
from localcloud.services.storage.acl import refuse_acl
from localcloud.services.storage.api import API, BUCKETS, project_in_query
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.content import Contents
from localcloud.services.storage.names import check_bucket_name
from localcloud.services.storage.records import Bucket

_PAGE = 1000


@API.method("buckets.insert", permission="storage.buckets.create", resources=project_in_query)
def insert(cloud: Cloud, call: Call) -> Json:
    """Create a bucket."""
    project = _project(cloud, call)
    name = call.body.get("name") or ""
    check_bucket_name(name)
    refuse_acl(call)
    if call.flag("enableObjectRetention"):
        raise ApiError(501, "the local cloud does not implement enableObjectRetention")
    wanted = call.sent(bucket_settings.WRITABLE)
    place, place_type = locations.check(call.body.get("location") or "US", wanted)
    now = cloud.clock.now()
    settings = bucket_settings.complete(wanted, {}, now)
    if place_type != "region":
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
        encryption.check_default_key(cloud, bucket, {})
        records.put_bucket(cloud, bucket)
        bucket_policy.create(cloud, bucket)
    return render.bucket_resource(bucket)


@API.method("buckets.list", permission="storage.buckets.list", resources=project_in_query)
def list_buckets(cloud: Cloud, call: Call) -> Json:
    """Return the buckets of a project, by name."""
    project = _project(cloud, call)
    page: Json = {"kind": "storage#buckets"}
    gone = call.flag("softDeleted")
    limit = min(call.number("maxResults") or _PAGE, _PAGE)
    found = [
        bucket
        for bucket in records.all_buckets(cloud, records.DELETED_BUCKET if gone else records.BUCKET)
        if bucket.project == project
        and bucket.name.startswith(call.arg("prefix"))
        and bucket.name > call.arg("pageToken")
    ]
    if found:
        page["items"] = [render.bucket_resource(bucket) for bucket in found[:limit]]
    if len(found) > limit:
        page["nextPageToken"] = found[limit - 1].name
    return page


@BUCKETS.method("get")
def get(cloud: Cloud, call: Call) -> Json | Response:
    """Return a bucket."""
    bucket = records.require_bucket(cloud, call.params["bucket"])
    if call.flag("softDeleted"):
        raise ApiError(404, "The specified bucket does not exist.")
    tag = render.etag(bucket.metageneration)
    known = call.request.headers.get("If-None-Match", "").strip('"')
    if Conditions.of(call).check_read(bucket) or known == tag:
        return Response(304, headers={"ETag": tag})
    return render.bucket_resource(bucket)


@BUCKETS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change some of a bucket's settings."""
    return _change(cloud, call, merge=True)


@BUCKETS.method("update")
def update(cloud: Cloud, call: Call) -> Json:
    """Replace a bucket's settings."""
    return _change(cloud, call, merge=False)


@BUCKETS.method("delete")
def delete(cloud: Cloud, call: Call) -> None:
    """Delete an empty bucket; with what was soft-deleted in it, it is kept for its days."""
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        kinds = (records.live_kind(bucket.name), records.noncurrent_kind(bucket.name))
        if any(cloud.store.keys(kind) for kind in kinds):
            raise ApiError(409, "The bucket you tried to delete is not empty.")
        kept = bucket.soft_delete_seconds > 0
        gone = records.version_key(bucket.name, bucket.generation)
        if kept:
            record = asdict(replace(bucket, soft_deleted=cloud.clock.now()))
            cloud.store.put(records.DELETED_BUCKET, gone, record)
        for key, record in cloud.store.items(records.deleted_kind(bucket.name)):
            cloud.store.delete(records.deleted_kind(bucket.name), key)
            if kept:
                cloud.store.put(records.deleted_kind(gone), key, record)
        resumable.forget(cloud, bucket.name)
        cloud.store.delete(records.BUCKET, bucket.name)
        cloud.store.delete(POLICY, bucket_policy.key(bucket.name))
        Contents(cloud).remove_bucket(bucket.name)


def _project(cloud: Cloud, call: Call) -> str:
    found = projects.find(cloud, call.arg("project"))
    if found is None:
        raise invalid(f"Unknown project id: {call.arg('project')}")
    access.require_service(cloud, found["projectId"], API.service)
    return str(found["projectId"])


def _refuse_taken(cloud: Cloud, call: Call, name: str) -> None:
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
    body = call.sent(bucket_settings.WRITABLE)
    with cloud.store.locked():
        bucket = records.require_bucket(cloud, call.params["bucket"])
        Conditions.of(call).check(bucket)
        refuse_acl(call, bucket)
        if call.body.get("location", bucket.location).upper() != bucket.location:
            raise invalid(f"A bucket's location cannot be changed; it is {bucket.location}.")
        if merge and not body:
            return render.bucket_resource(bucket)
        now = cloud.clock.now()
        wanted = bucket_settings.merged(bucket.settings, body) if merge else body
        changed = replace(
            bucket,
            settings=bucket_settings.complete(wanted, bucket.settings, now),
            metageneration=bucket.metageneration + 1,
            updated=now,
        )
        encryption.check_default_key(cloud, changed, bucket.settings)
        records.put_bucket(cloud, changed)
    return render.bucket_resource(changed)
