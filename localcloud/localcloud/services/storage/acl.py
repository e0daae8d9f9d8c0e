"""Access control lists: refused clearly, since policies alone decide in the local cloud."""

from __future__ import annotations

from localcloud.core.call import Call
from localcloud.core.errors import ApiError, invalid
from localcloud.services.storage.records import Bucket

_PARAMETERS = ("predefinedAcl", "predefinedDefaultObjectAcl", "destinationPredefinedAcl")
# These grant nothing beyond the bucket's policy.
_HARMLESS = frozenset(
    {"", "private", "projectPrivate", "bucketOwnerFullControl", "bucketOwnerRead"}
)


def refuse_acl(call: Call, bucket: Bucket | None = None) -> None:
    """Refuse parameters that ask for an access control list.

    Raises:
        ApiError: 400 in a bucket with uniform access, as on Google; else 501.
    """
    for name in _PARAMETERS:
        value = call.arg(name)
        if value and bucket is not None and bucket.uniform_access:
            raise invalid(
                "Cannot use ACL API to update bucket policy when uniform bucket-level access is "
                "enabled. Read more at "
                "https://cloud.google.com/storage/docs/uniform-bucket-level-access"
            )
        if value not in _HARMLESS:
            raise ApiError(
                501,
                f"the local cloud has no access control lists ({name}={value}); grant a role in "
                "the bucket's policy instead",
            )
