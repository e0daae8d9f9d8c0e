"""Finds objects of a bucket by a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

from tpustack.cloud.google import Google

_LIST = "https://storage.googleapis.com/storage/v1/b/{}/o"
_FIELDS = "items(name,generation,size),nextPageToken"


@dataclass(frozen=True)
class Found:
    """An object's name, its generation and its size."""

    path: str
    generation: int
    size: int


def matching(google: Google, bucket: str, prefix: str, glob: str) -> Iterator[Found]:
    """Yield the objects below `prefix` that match a glob of Cloud Storage. Raises TpustackError."""
    query = {"prefix": prefix, "matchGlob": glob, "fields": _FIELDS}
    for item in google.pages(_LIST.format(quote(bucket, safe="")), "items", query):
        yield Found(item["name"], int(item["generation"]), int(item.get("size", 0)))
