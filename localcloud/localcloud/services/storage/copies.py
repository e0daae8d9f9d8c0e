"""Objects made of others: copy, rewrite, move, compose and restore."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.registry import Collection
from localcloud.services.storage import api, records, versions
from localcloud.services.storage.api import DESTINATIONS, OBJECTS, Conditions, refuse_acl
from localcloud.services.storage.content import Checksums, Contents, chunks_of
from localcloud.services.storage.records import Version
from localcloud.services.storage.versions import Write

_SOURCES = 32
_MOVED = Collection(
    api.API, "objects", "storage.objects", api.bucket_in("bucket", "destinationObject")
)


@DESTINATIONS.method("copy", verb="create")
def _copy(cloud: Cloud, call: Call) -> Json:
    return records.object_resource(_copied(cloud, call, call.params["destinationBucket"]))


@DESTINATIONS.method("rewrite", verb="create")
def rewrite(cloud: Cloud, call: Call) -> Json:
    """Copy an object, always in one call, so there is never a token."""
    if call.arg("rewriteToken"):
        raise invalid(f"Invalid rewrite token: {call.arg('rewriteToken')}")
    version = _copied(cloud, call, call.params["destinationBucket"])
    return {
        "kind": "storage#rewriteResponse",
        "totalBytesRewritten": str(version.size),
        "objectSize": str(version.size),
        "done": True,
        "resource": records.object_resource(version),
    }


@_MOVED.method("move", verb="create")
def move(cloud: Cloud, call: Call) -> Json:
    """Rename an object within its bucket."""
    bucket = call.params["bucket"]
    if call.params["sourceObject"] == call.params["destinationObject"]:
        raise invalid("The source and the destination of a move must differ.")
    with cloud.store.locked():
        source = _source(cloud, call, bucket)
        api.require(cloud, call.principal, bucket, "storage.objects.delete", source.name)
        versions.protect(cloud, records.require_bucket(cloud, bucket), source)
        version = _copied(cloud, call, bucket)
        versions.delete(cloud, records.require_bucket(cloud, bucket), source)
    return records.object_resource(version)


@DESTINATIONS.method("compose", verb="create")
def compose(cloud: Cloud, call: Call) -> Json:
    """Join up to 32 objects of the same bucket into one."""
    bucket = call.params["destinationBucket"]
    refuse_acl(call, records.require_bucket(cloud, bucket))
    api.refuse_key_in_call(call)
    wanted = call.body.get("sourceObjects") or []
    if not 1 <= len(wanted) <= _SOURCES:
        raise invalid(
            f"The number of source components provided ({len(wanted)}) is not between 1 and "
            f"{_SOURCES}."
        )
    for source in wanted:
        name = source.get("name") or ""
        api.require(cloud, call.principal, bucket, "storage.objects.get", name)
    moves = call.body.get("deleteSourceObjects")
    write = Write(
        bucket=bucket,
        name=call.params["destinationObject"],
        principal=call.principal,
        body=call.body.get("destination") or {},
        conditions=Conditions.of(call),
    )
    write.check(cloud)
    contents = Contents(cloud)
    with contents.draft() as draft, ExitStack() as files:
        with cloud.store.locked():
            sources = [_component(cloud, bucket, source) for source in wanted]
            streams = [
                files.enter_context(contents.path(bucket, source.content).open("rb"))
                for source in sources
            ]
        draft.fill(chunk for stream in streams for chunk in chunks_of(stream))
        version = write.finish(
            cloud,
            draft.path,
            # The MD5 of a composed object is unknown on Google, so clients must not count on it.
            replace(draft.digest.result(), md5=None),
            components=sum(source.components or 1 for source in sources),
        )
    if moves:
        for version_of in sources:
            api.require(cloud, call.principal, bucket, "storage.objects.delete", version_of.name)
        _delete(cloud, bucket, [source for source in sources if source.name != version.name])
    return records.object_resource(version)


@OBJECTS.method("restore")
def restore(cloud: Cloud, call: Call) -> Json:
    """Restore a soft-deleted version as a new generation."""
    bucket, name = call.params["bucket"], call.params["object"]
    generation = call.number("generation")
    if generation is None:
        raise invalid("Required parameter: generation")
    with cloud.store.locked():
        found = records.find_deleted(cloud, bucket, name, generation)
        if found is None:
            raise records.missing(bucket, name)
        version = _duplicate(cloud, found, _same(call, found, bucket, name))
    return records.object_resource(version)


def _copied(cloud: Cloud, call: Call, destination: str) -> Version:
    refuse_acl(call, records.require_bucket(cloud, destination))
    api.refuse_key_in_call(call)
    source_bucket = call.params.get("sourceBucket", destination)
    name = call.params["sourceObject"]
    api.require(cloud, call.principal, source_bucket, "storage.objects.get", name)
    with cloud.store.locked():
        source = _source(cloud, call, source_bucket)
        write = _same(call, source, destination, call.params["destinationObject"])
        return _duplicate(cloud, source, write)


def _same(call: Call, source: Version, bucket: str, name: str) -> Write:
    """Return a write of the source's bytes, with its metadata unless the caller sends other."""
    body = dict(call.body)
    if not versions.writable(body):
        held = ("temporaryHold", "eventBasedHold")
        body |= {field: value for field, value in source.fields.items() if field not in held}
    return Write(bucket, name, call.principal, body, Conditions.of(call))


def _duplicate(cloud: Cloud, source: Version, write: Write) -> Version:
    """Give the destination the source's bytes; a link takes no time however many there are."""
    write.check(cloud)
    api.check_readable(cloud, records.require_bucket(cloud, source.bucket), source)
    contents = Contents(cloud)
    with contents.draft() as draft:
        contents.link(source.bucket, source.content, draft.path)
        checksums = Checksums(source.size, source.md5, source.crc32c)
        return write.finish(cloud, draft.path, checksums, components=source.components)


def _source(cloud: Cloud, call: Call, bucket: str) -> Version:
    name = call.params["sourceObject"]
    source = records.require(cloud, bucket, name, call.number("sourceGeneration"))
    Conditions.of(call, "ifSource").check(source)
    return source


def _component(cloud: Cloud, bucket: str, source: Json) -> Version:
    generation = source.get("generation")
    found = records.require(
        cloud, bucket, source.get("name") or "", int(generation) if generation else None
    )
    expected = (source.get("objectPreconditions") or {}).get("ifGenerationMatch")
    Conditions(generation_match=int(expected) if expected is not None else None).check(found)
    api.check_readable(cloud, records.require_bucket(cloud, bucket), found)
    return found


def _delete(cloud: Cloud, bucket: str, sources: list[Version]) -> None:
    with cloud.store.locked():
        found = records.require_bucket(cloud, bucket)
        for source in sources:
            # The object may have been replaced since.
            if records.find(cloud, bucket, source.name, source.generation) is not None:
                versions.protect(cloud, found, source)
                versions.delete(cloud, found, source)
