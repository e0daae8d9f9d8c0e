"""Objects: metadata, lists, downloads, deletion and copies; reading and writing by the XML API."""

import base64
import json
import re
import string
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from email.utils import formatdate
from typing import IO
from urllib.parse import quote

from localcloud.core import ApiError, Call, Cloud, Collection, Json, Request, Response, invalid
from localcloud.services.storage import api, records, versions
from localcloud.services.storage.api import API, DESTINATIONS, OBJECTS, Conditions
from localcloud.services.storage.records import Version
from localcloud.services.storage.versions import CHUNK, Checksums, Contents, Write

_PAGE = 1000


@OBJECTS.method("get")
def get(cloud: Cloud, call: Call) -> Json | Response:
    """Return an object's metadata, or its bytes with `alt=media` or below /download/."""
    with cloud.store.locked():
        version = _find(cloud, call)
        if Conditions.of(call).check_read(version):
            return Response(304)
        if call.arg("alt") == "media" or call.request.path.startswith("/download/"):
            return _media(cloud, version, call.request)
    return records.object_resource(version)


@OBJECTS.method("list")
def _list_objects(cloud: Cloud, call: Call) -> Json:
    """Return a page of objects, and of the prefixes that stand for what is below a delimiter."""
    bucket = records.require_bucket(cloud, call.params["bucket"]).name
    limit = call.number("maxResults")
    if limit is not None and limit < 0:
        raise invalid(f"Invalid value for maxResults: {limit}.")
    api.refuse_soft_deleted(call)
    for name in ("filter", "includeTrailingDelimiter"):
        if call.arg(name) not in ("", "false"):
            raise ApiError(501, f"the local cloud does not implement {name} of objects.list")
    limit = min(limit or _PAGE, _PAGE)
    wanted = Listing(
        prefix=call.arg("prefix"),
        delimiter=call.arg("delimiter"),
        start_offset=call.arg("startOffset"),
        end_offset=call.arg("endOffset"),
        match_glob=call.arg("matchGlob"),
    )
    after = _decode_token(call.arg("pageToken"))
    items: list[Json] = []
    prefixes: list[str] = []
    last: Position | None = None
    with cloud.store.locked():
        for entry in wanted.entries(_keys(cloud, call, bucket, wanted.prefix), after):
            # A page counts prefixes, too.
            if len(items) + len(prefixes) == limit:
                break
            last = entry
            if entry[1] == 0:
                prefixes.append(entry[0])
            else:
                found = records.require(cloud, bucket, entry[0], entry[2] or None)
                items.append(records.object_resource(found))
        else:
            last = None
    token = base64.urlsafe_b64encode(json.dumps(last).encode()).decode() if last else ""
    page: Json = {"items": items, "prefixes": prefixes, "nextPageToken": token}
    return {"kind": "storage#objects"} | {name: part for name, part in page.items() if part}


@OBJECTS.method("patch", verb="update")
def _patch(cloud: Cloud, call: Call) -> Json:
    # A PATCH changes the fields that it names, a PUT leaves no other.
    changes = versions.writable(call.body)
    return _change(cloud, call, lambda fields: versions.patched(fields, changes))


@OBJECTS.method("update")
def _update(cloud: Cloud, call: Call) -> Json:
    fields = versions.without_nulls(versions.writable(call.body))
    return _change(cloud, call, lambda _: fields)


@OBJECTS.method("delete")
def delete(cloud: Cloud, call: Call) -> None:
    """Delete an object, or one of its versions."""
    with cloud.store.locked():
        version = _find(cloud, call)
        Conditions.of(call).check(version)
        bucket = records.require_bucket(cloud, version.bucket)
        versions.delete(cloud, bucket, version, for_good=bool(call.arg("generation")))


def _find(cloud: Cloud, call: Call) -> Version:
    """Return the version that a call names by bucket, object and, if sent, generation.

    A missing one is 404, or 403 where the caller may not learn that it is missing.
    """
    bucket, name = call.params["bucket"], call.params["object"]
    generation = call.number("generation")
    api.refuse_soft_deleted(call)
    found = records.find(cloud, bucket, name, generation)
    if found is None:
        api.require(cloud, call.principal, bucket, "storage.objects.list")
        raise records.missing(bucket, name)
    return found


def _keys(cloud: Cloud, call: Call, bucket: str, prefix: str) -> list[tuple[str, int]]:
    """Return the sorted names to list, each with its generation; 0 stands for the live one."""
    store = cloud.store
    live = store.keys(records.live_kind(bucket), prefix)
    if not call.flag("versions"):
        return [(name, 0) for name in live]
    current = [(name, records.require(cloud, bucket, name).generation) for name in live]
    older = store.keys(records.noncurrent_kind(bucket), prefix)
    return sorted(current + [records.split_key(key) for key in older])


def _change(cloud: Cloud, call: Call, change: versions.Change) -> Json:
    # Metadata has a generation of its own, the metageneration; the bytes' stays.
    api.refuse_unserved(call)
    with cloud.store.locked():
        version = _find(cloud, call)
        Conditions.of(call).check(version)
        changed = replace(
            version,
            fields=change(version.fields),
            metageneration=version.metageneration + 1,
            updated=cloud.clock.now(),
        )
        records.replace_version(cloud, changed)
    return records.object_resource(changed)


# Lists: prefixes, delimiters, offsets, globs and pages.

Position = tuple[str, int, int]
"""The position of an entry in a list: its name, 0 for a prefix or 1 for an object, generation.

A page token is the last position: whatever is written or deleted between two pages, no entry comes
twice.
"""


@dataclass(frozen=True)
class Listing:
    """What a list call asks for; the fields are the API's parameters."""

    prefix: str = ""
    delimiter: str = ""
    start_offset: str = ""
    end_offset: str = ""
    match_glob: str = ""

    def entries(self, keys: list[tuple[str, int]], after: Position | None) -> Iterator[Position]:
        """Yield the entries behind `after`; `keys` are all names and generations, sorted."""
        glob = compile_glob(self.match_glob) if self.match_glob else None
        first = max(self.prefix, self.start_offset, after[0] if after else "")
        # Names are sorted, so those below one prefix follow each other.
        seen = ""
        for name, generation in keys[bisect_left(keys, (first, -1)) :]:
            if not name.startswith(self.prefix) or (self.end_offset and name >= self.end_offset):
                return
            # A delimiter inside the prefix itself does not count.
            end = name.find(self.delimiter, len(self.prefix)) if self.delimiter else -1
            folder = name[: end + len(self.delimiter)] if end >= 0 else ""
            if folder and folder == seen:
                continue
            seen = folder or seen
            entry = (folder, 0, 0) if folder else (name, 1, generation)
            if (after is None or entry > after) and (not glob or glob.fullmatch(entry[0])):
                yield entry


def _decode_token(token: str) -> Position | None:
    if not token:
        return None
    try:
        name, kind, generation = json.loads(base64.urlsafe_b64decode(token))
        return str(name), int(kind), int(generation)
    except (ValueError, TypeError):
        raise invalid(f"Invalid page token: {token}") from None


_GLOB = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


def compile_glob(glob: str) -> re.Pattern[str]:
    """Return a glob of Cloud Storage as a regular expression: `**` does not stop at slashes.

    Raises ApiError: 501 for sets and alternatives
    (cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob).
    """
    if re.search(r"[\[\]{}\\]", glob):
        raise ApiError(501, f"the local cloud knows only *, ** and ? in globs, not '{glob}'")
    tokens = re.findall(r"\*\*|.", glob, re.DOTALL)
    return re.compile("".join(_GLOB.get(each) or re.escape(each) for each in tokens), re.DOTALL)


# Downloads: headers and ranges.

_RANGE = re.compile(r"bytes=(?:(\d+)-(\d*)|-(\d+))")
_FIELDS = {
    "Cache-Control": "cacheControl",
    "Content-Disposition": "contentDisposition",
    "Content-Encoding": "contentEncoding",
    "Content-Language": "contentLanguage",
    "Content-Type": "contentType",
}


def _media(cloud: Cloud, version: Version, request: Request) -> Response:
    """Return the object's bytes, or the range of them that the request asks for.

    Call it with the store locked: the file is opened here, and a later deletion doesn't disturb
    the reader.
    """
    api.check_readable(cloud, records.require_bucket(cloud, version.bucket), version)
    headers = _media_headers(version)
    path = Contents(cloud).path(version.bucket, version.content)
    asked = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    span = _span(asked, version.size)
    if span is None:
        message = b"The requested range cannot be satisfied."
        return Response(416, message, {"Content-Range": f"bytes */{version.size}"})
    start, length = span
    # An answer to a range is partial even when it is the whole object.
    if asked:
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{version.size}"
    body = b"" if request.verb == "HEAD" else _pieces(path.open("rb"), start, length)
    headers["Content-Length"] = str(length)
    return Response(206 if asked else 200, body, headers, length)


def _media_headers(version: Version) -> dict[str, str]:
    """Return the headers that go with an object's bytes, as both APIs send them.

    They are those of cloud.google.com/storage/docs/xml-api/reference-headers.
    """
    hashes = f"crc32c={version.crc32c}" + (f",md5={version.md5}" if version.md5 else "")
    fields = {"contentType": "application/octet-stream"} | {
        k: v for k, v in version.fields.items() if v
    }
    headers = {
        "ETag": records.etag(version.generation, version.metageneration),
        "Last-Modified": formatdate(version.updated, usegmt=True),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(version.generation),
        "x-goog-metageneration": str(version.metageneration),
        "x-goog-hash": hashes,
        "x-goog-storage-class": version.storage_class,
    }
    headers |= {name: _header_value(fields[key]) for name, key in _FIELDS.items() if key in fields}
    for key, value in fields.get("metadata", {}).items():
        headers[f"x-goog-meta-{quote(key)}"] = _header_value(value)
    return headers


def _header_value(value: str) -> str:
    """Return what a user set, in the form of a header: all but ASCII is percent-encoded."""
    return quote(value, safe=f" {string.punctuation}")


def _span(asked: re.Match[str] | None, size: int) -> tuple[int, int] | None:
    """Return start and length of the requested range; None when it is empty.

    A header in another form asks for everything, as RFC 9110 (section 14.2) wants it.
    """
    if not asked:
        return 0, size
    first, last, suffix = asked.groups()
    if suffix is not None:
        length = min(int(suffix), size)
        return (size - length, length) if length else None
    start = int(first)
    end = min(int(last), size - 1) if last else size - 1
    return None if start >= size or end < start else (start, end - start + 1)


def _pieces(file: IO[bytes], start: int, length: int) -> Iterator[bytes]:
    # The file is read while the client takes it: an object of any size needs one chunk of memory.
    with file:
        file.seek(start)
        while length > 0:
            chunk = file.read(min(CHUNK, length))
            if not chunk:
                raise ConnectionError("the content file is shorter than its record says")
            length -= len(chunk)
            yield chunk


# The XML API: GET, HEAD and PUT of an object (cloud.google.com/storage/docs/xml-api/overview).
# TensorFlow reads objects this way. Errors come as the JSON API's: it looks at the status alone.

_HOSTS = ("storage.googleapis.com",)
_PATH = r"/(?!(?:storage|upload|resumable|download|batch)/)(?P<bucket>[^/]+)/(?P<object>.+)"
# Beginnings of headers that ask for what is not done here.
_UNSERVED = ("x-goog-acl", "x-goog-copy-", "x-goog-encryption-", "x-goog-if-", "x-goog-meta-")


def _refuse_unserved(call: Call) -> None:
    for name in call.request.headers:
        if name.lower().startswith(_UNSERVED):
            raise ApiError(501, f"the local cloud does not implement {name}; use the JSON API")


@API.raw("GET", _PATH, like="objects.get", hosts=_HOSTS)
@API.raw("HEAD", _PATH, like="objects.get", hosts=_HOSTS)
def get_by_xml(cloud: Cloud, call: Call) -> Response:
    """Return an object's bytes, or only the headers."""
    _refuse_unserved(call)
    bucket, name = call.params["bucket"], call.params["object"]
    api.require(cloud, call.principal, bucket, "storage.objects.get", name)
    with cloud.store.locked():
        return _media(cloud, _find(cloud, call), call.request)


@API.raw("PUT", _PATH, like="objects.insert", hosts=_HOSTS, upload=True)
def put_by_xml(cloud: Cloud, call: Call) -> Response:
    """Create or replace an object."""
    _refuse_unserved(call)
    headers = call.request.headers
    write = Write(
        bucket=call.params["bucket"],
        name=call.params["object"],
        principal=call.principal,
        body={field: headers[name] for name, field in _FIELDS.items() if headers.get(name)},
        hashes=versions.header_hashes(call.request),
    )
    version = write.take(cloud, versions.chunks_of(call.request.stream))
    answer = _media_headers(version)
    kept = {name: value for name, value in answer.items() if name == "ETag" or "goog" in name}
    return Response(200, headers=kept)


# Objects made of others: copy, rewrite, move and compose.

_SOURCES = 32
_MOVED = Collection(API, "objects", "storage.objects", api.bucket_in("bucket", "destinationObject"))


@DESTINATIONS.method("copy", verb="create")
def _copy(cloud: Cloud, call: Call) -> Json:
    return records.object_resource(_copied(cloud, call, call.params["destinationBucket"]))


@DESTINATIONS.method("rewrite", verb="create")
def rewrite(cloud: Cloud, call: Call) -> Json:
    """Copy an object, always in one call, so there is never a token.

    Google splits long copies over calls and gives a token for the next; a copy here is a link.
    """
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
    """Rename an object within its bucket; a copy and a deletion that others see as one step."""
    name = call.params["bucket"]
    if call.params["sourceObject"] == call.params["destinationObject"]:
        raise invalid("The source and the destination of a move must differ.")
    with cloud.store.locked():
        source = _source(cloud, call, name)
        api.require(cloud, call.principal, name, "storage.objects.delete", source.name)
        version = _copied(cloud, call, name)
        versions.delete(cloud, records.require_bucket(cloud, name), source)
    return records.object_resource(version)


@DESTINATIONS.method("compose", verb="create")
def compose(cloud: Cloud, call: Call) -> Json:
    """Join up to 32 objects of a bucket into one (…/storage/docs/composite-objects)."""
    bucket = call.params["destinationBucket"]
    api.refuse_unserved(call)
    wanted = call.body.get("sourceObjects") or []
    if not 1 <= len(wanted) <= _SOURCES:
        raise invalid(
            f"The number of source components provided ({len(wanted)}) is not between 1 and "
            f"{_SOURCES}."
        )
    for source in wanted:
        name = source.get("name") or ""
        api.require(cloud, call.principal, bucket, "storage.objects.get", name)
    body = call.body.get("destination") or {}
    name, conditions = call.params["destinationObject"], Conditions.of(call)
    write = Write(bucket, name, call.principal, body, conditions)
    write.check(cloud)
    contents = Contents(cloud)
    with contents.draft() as path, ExitStack() as files:
        with cloud.store.locked():
            sources = [_component(cloud, bucket, source) for source in wanted]
            paths = [contents.path(bucket, source.content) for source in sources]
            streams = [files.enter_context(each.open("rb")) for each in paths]
        # Outside the lock: the files are open, so nothing that is deleted now can disturb.
        chunks = (chunk for stream in streams for chunk in versions.chunks_of(stream))
        # The MD5 of a composed object is unknown on Google, so clients must not count on it.
        checksums = replace(versions.fill(path, chunks), md5=None)
        components = sum(source.components or 1 for source in sources)
        version = write.finish(cloud, path, checksums, components=components)
    return records.object_resource(version)


def _copied(cloud: Cloud, call: Call, destination: str) -> Version:
    api.refuse_unserved(call)
    source_bucket = call.params.get("sourceBucket", destination)
    name = call.params["sourceObject"]
    api.require(cloud, call.principal, source_bucket, "storage.objects.get", name)
    with cloud.store.locked():
        source = _source(cloud, call, source_bucket)
        # The source's metadata goes along unless the caller sends other.
        body = dict(call.body) | ({} if versions.writable(call.body) else source.fields)
        target, conditions = call.params["destinationObject"], Conditions.of(call)
        write = Write(destination, target, call.principal, body, conditions)
        return _duplicate(cloud, source, write)


def _duplicate(cloud: Cloud, source: Version, write: Write) -> Version:
    """Give the destination the source's bytes; a link takes no time however many there are."""
    write.check(cloud)
    api.check_readable(cloud, records.require_bucket(cloud, source.bucket), source)
    contents = Contents(cloud)
    with contents.draft() as path:
        contents.link(source.bucket, source.content, path)
        checksums = Checksums(source.size, source.md5, source.crc32c)
        return write.finish(cloud, path, checksums, components=source.components)


def _source(cloud: Cloud, call: Call, bucket: str) -> Version:
    name = call.params["sourceObject"]
    source = records.require(cloud, bucket, name, call.number("sourceGeneration"))
    Conditions.of(call, "ifSource").check(source)
    return source


def _component(cloud: Cloud, bucket: str, source: Json) -> Version:
    generation = int(source["generation"]) if source.get("generation") else None
    found = records.require(cloud, bucket, source.get("name") or "", generation)
    expected = (source.get("objectPreconditions") or {}).get("ifGenerationMatch")
    Conditions(generation_match=int(expected) if expected is not None else None).check(found)
    api.check_readable(cloud, records.require_bucket(cloud, bucket), found)
    return found
