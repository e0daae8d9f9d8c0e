"""Methods on objects that move no bytes in: get, list, patch, update, delete."""

from __future__ import annotations

from dataclasses import replace

from localcloud.core.call import Call, Json, Response
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.storage import (
    api,
    download,
    listing,
    object_fields,
    records,
    render,
    versions,
)
from localcloud.services.storage.acl import refuse_acl
from localcloud.services.storage.api import OBJECTS
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.records import Version

_PAGE = 1000


@OBJECTS.method("get")
def get(cloud: Cloud, call: Call) -> Json | Response:
    """Return an object's metadata, or its bytes with `alt=media` or below /download/."""
    with cloud.store.locked():
        version = find(cloud, call)
        tag = render.object_etag(version)
        if Conditions.of(call).check_read(version) or _has_tag(call, tag):
            return Response(304, headers={"ETag": tag})
        if call.arg("alt") == "media" or call.request.path.startswith("/download/"):
            return download.media(cloud, version, call.request, tag)
    return render.object_resource(version)


@OBJECTS.method("list")
def list_objects(cloud: Cloud, call: Call) -> Json:
    """Return the objects of a bucket, by name."""
    bucket = records.require_bucket(cloud, call.params["bucket"]).name
    limit = call.number("maxResults")
    if limit is not None and limit < 0:
        raise invalid(f"Invalid value for maxResults: {limit}.")
    if call.arg("filter"):
        raise ApiError(501, "the local cloud does not implement the filter of objects.list")
    limit = min(limit or _PAGE, _PAGE)
    wanted = listing.Listing(
        prefix=call.arg("prefix"),
        delimiter=call.arg("delimiter"),
        start_offset=call.arg("startOffset"),
        end_offset=call.arg("endOffset"),
        match_glob=call.arg("matchGlob"),
        include_trailing_delimiter=call.flag("includeTrailingDelimiter"),
    )
    after = listing.decode_token(call.arg("pageToken"))
    items: list[Json] = []
    prefixes: list[str] = []
    last: listing.Position | None = None
    with cloud.store.locked():
        for entry in wanted.entries(_keys(cloud, call, bucket, wanted.prefix), after):
            if len(items) + len(prefixes) == limit:
                break
            last = entry
            if entry[1] == 0:
                prefixes.append(entry[0])
            else:
                items.append(render.object_resource(_listed(cloud, call, bucket, entry)))
        else:
            last = None
    page: Json = {"kind": "storage#objects"}
    if items:
        page["items"] = items
    if prefixes:
        page["prefixes"] = prefixes
    if last is not None:
        page["nextPageToken"] = listing.encode_token(last)
    return page


@OBJECTS.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change some of an object's metadata."""
    changes = object_fields.writable(call.body)
    return _change(cloud, call, lambda fields: object_fields.patched(fields, changes))


@OBJECTS.method("update")
def update(cloud: Cloud, call: Call) -> Json:
    """Replace an object's metadata."""
    fields = object_fields.without_nulls(object_fields.writable(call.body))
    return _change(cloud, call, lambda _: fields)


@OBJECTS.method("delete")
def delete(cloud: Cloud, call: Call) -> None:
    """Delete an object, or one of its versions."""
    with cloud.store.locked():
        version = find(cloud, call)
        Conditions.of(call).check(version)
        bucket = records.require_bucket(cloud, version.bucket)
        versions.protect(cloud, bucket, version)
        versions.delete(cloud, bucket, version, for_good=bool(call.arg("generation")))


def find(cloud: Cloud, call: Call) -> Version:
    """Return the version that a call names by bucket, object and, if sent, generation.

    Raises:
        ApiError: 404, or 403 where the caller may not learn that the object is missing.
    """
    bucket, name = call.params["bucket"], call.params["object"]
    generation = call.number("generation")
    if call.flag("softDeleted"):
        if generation is None:
            raise invalid("Required parameter: generation, to get a soft-deleted object.")
        found = records.find_deleted(cloud, bucket, name, generation)
    else:
        found = records.find(cloud, bucket, name, generation)
    if found is None:
        api.require(cloud, call.principal, bucket, "storage.objects.list")
        raise records.missing(bucket, name)
    return found


def _keys(cloud: Cloud, call: Call, bucket: str, prefix: str) -> list[tuple[str, int]]:
    store = cloud.store
    if call.flag("softDeleted"):
        if call.flag("versions"):
            raise invalid("softDeleted and versions cannot both be true.")
        return _split(store.keys(records.deleted_kind(bucket), prefix))
    live = store.keys(records.live_kind(bucket), prefix)
    if not call.flag("versions"):
        return [(name, 0) for name in live]
    current = [(name, records.require(cloud, bucket, name).generation) for name in live]
    return sorted(current + _split(store.keys(records.noncurrent_kind(bucket), prefix)))


def _split(keys: list[str]) -> list[tuple[str, int]]:
    return sorted(records.split_key(key) for key in keys)


def _listed(cloud: Cloud, call: Call, bucket: str, entry: listing.Position) -> Version:
    name, _, generation = entry
    if call.flag("softDeleted"):
        found = records.find_deleted(cloud, bucket, name, generation)
        if found is not None:
            return found
    return records.require(cloud, bucket, name, generation or None)


def _change(cloud: Cloud, call: Call, change: object_fields.Change) -> Json:
    refuse_acl(call, records.require_bucket(cloud, call.params["bucket"]))
    with cloud.store.locked():
        version = find(cloud, call)
        Conditions.of(call).check(version)
        changed = replace(
            version,
            fields=change(version.fields),
            metageneration=version.metageneration + 1,
            updated=cloud.clock.now(),
        )
        records.replace_version(cloud, changed)
    return render.object_resource(changed)


def _has_tag(call: Call, tag: str) -> bool:
    return call.request.headers.get("If-None-Match", "").strip('"') == tag
