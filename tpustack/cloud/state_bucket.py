"""The bucket in which Pulumi keeps the state of stacks: found, or made."""

from __future__ import annotations

from urllib.parse import quote

from bootstrap.settings import OLD_VERSIONS, SOFT_DELETE
from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

_BUCKETS = "https://storage.googleapis.com/storage/v1/b"


def ensure(google: Google, name: str, *, project: str, region: str) -> bool:
    """Make the bucket if there is none, private and with its old versions; return whether it did.

    Raises:
        TpustackError: with Google's own message, such as that the name is somebody else's.
    """
    if _is_there(google, name):
        return False
    try:
        google.post(_BUCKETS, {"project": project}, _definition(name, region))
    except TpustackError:
        # Somebody else may have made it at the same moment.
        if not _is_there(google, name):
            raise
        return False
    return True


def _is_there(google: Google, name: str) -> bool:
    try:
        google.get(f"{_BUCKETS}/{quote(name)}", {"fields": "name"})
    except NotFound:
        return False
    return True


def _definition(name: str, region: str) -> dict[str, object]:
    delete_old = {
        "action": {"type": "Delete"},
        "condition": {"numNewerVersions": OLD_VERSIONS, "isLive": False},
    }
    return {
        "name": name,
        "location": region.upper(),
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
        "versioning": {"enabled": True},
        "softDeletePolicy": {"retentionDurationSeconds": str(SOFT_DELETE)},
        "lifecycle": {"rule": [delete_old]},
    }
