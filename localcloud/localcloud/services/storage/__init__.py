"""Cloud Storage: the JSON API v1, and of the XML API what clients use to read and write objects."""

from __future__ import annotations

from localcloud.services.storage import (
    batch,
    bucket_policy,
    buckets,
    copies,
    extras,
    objects,
    resumable,
    upkeep,
    uploads,
    xml,
)
from localcloud.services.storage.api import API

__all__ = [
    "API",
    "batch",
    "bucket_policy",
    "buckets",
    "copies",
    "extras",
    "objects",
    "resumable",
    "upkeep",
    "uploads",
    "xml",
]
