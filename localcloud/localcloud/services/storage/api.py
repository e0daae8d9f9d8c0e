"""The Cloud Storage API's registration, and whose policies count for a bucket."""

from __future__ import annotations

from collections.abc import Sequence

from localcloud.core import access, projects
from localcloud.core.call import ANONYMOUS, Call, Principal
from localcloud.core.cloud import Cloud
from localcloud.core.registry import Api, Collection, Resources
from localcloud.services.storage import records

API = Api("storage", ("v1",), hosts=("www.googleapis.com",), anonymous=True)
HOSTS = ("storage.googleapis.com", "www.googleapis.com")


def resources_of(cloud: Cloud, bucket: str, principal: Principal, name: str = "") -> Sequence[str]:
    """Return what is accessed, a bucket or an object in it, and what it is in.

    Objects have no policies of their own, but conditions of the bucket's know them by their names.

    Raises:
        ApiError: 404 when there is no such bucket.
    """
    found = records.require_bucket(cloud, bucket)
    if principal is ANONYMOUS and found.public_access_prevented:
        # Public access prevention outweighs bindings that were there before it.
        return ()
    accessed = (f"buckets/{bucket}/objects/{name}",) if name else ()
    return (*accessed, f"buckets/{bucket}", f"projects/{found.project}")


def require(
    cloud: Cloud, principal: Principal, bucket: str, permission: str, name: str = ""
) -> None:
    """Raise Google's 403 when a caller lacks a permission on a bucket, or an object in it."""
    access.require(cloud, principal, permission, resources_of(cloud, bucket, principal, name))


def bucket_in(parameter: str, name: str = "") -> Resources:
    """Return the policies that count for what path parameters name: a bucket, maybe an object."""

    def resources(cloud: Cloud, call: Call) -> Sequence[str]:
        bucket = call.params[parameter]
        return resources_of(cloud, bucket, call.principal, call.params.get(name, ""))

    return resources


BUCKETS = Collection(API, "buckets", "storage.buckets", bucket_in("bucket"))
OBJECTS = Collection(API, "objects", "storage.objects", bucket_in("bucket", "object"))
DESTINATIONS = Collection(
    API, "objects", "storage.objects", bucket_in("destinationBucket", "destinationObject")
)
"""The methods of objects that are allowed by the bucket to which they write."""


def project_in_query(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return the policy of the project that the query names, for calls on no bucket yet."""
    return (f"projects/{projects.identifier(cloud, call.arg('project'))}",)
