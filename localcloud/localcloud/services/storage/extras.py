"""Small methods that clients call on the way: empty lists, a bucket's layout, the agent."""

from __future__ import annotations

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.storage import encryption, records
from localcloud.services.storage.api import API, HOSTS, bucket_in


@API.raw(
    "GET",
    # Google's provider ends the path with a slash.
    r"/storage/v1/b/(?P<bucket>[^/]+)/anywhereCaches/",
    like="anywhereCaches.list",
    hosts=HOSTS,
    permission="storage.anywhereCaches.list",
    resources=bucket_in("bucket"),
)
@API.method(
    "anywhereCaches.list",
    permission="storage.anywhereCaches.list",
    resources=bucket_in("bucket"),
)
def list_caches(cloud: Cloud, call: Call) -> Json:
    """List no caches: the local cloud can't make any. Google's provider asks before it deletes."""
    return {"kind": "storage#anywhereCaches"}


@API.method("notifications.list", permission="storage.buckets.get", resources=bucket_in("bucket"))
def list_notifications(cloud: Cloud, call: Call) -> Json:
    """List no notifications: buckets of the local cloud send none."""
    return {"kind": "storage#notifications"}


@API.method(
    "buckets.getStorageLayout", permission="storage.objects.list", resources=bucket_in("bucket")
)
def storage_layout(cloud: Cloud, call: Call) -> Json:
    """Return where a bucket lies and that its namespace is flat, as gcloud asks before a copy."""
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
    """Return the account in whose name Cloud Storage acts for a project."""
    found = projects.find(cloud, call.project)
    if found is None:
        raise invalid(f"Unknown project id: {call.project}")
    number = found["projectNumber"]
    return {
        "kind": "storage#serviceAccount",
        "email_address": encryption.agent(number),
    }


@API.method(
    "managedFolders.list",
    permission="storage.managedFolders.list",
    resources=bucket_in("bucket"),
)
def list_managed_folders(cloud: Cloud, call: Call) -> Json:
    """List no managed folders, which can't be made here. gcloud asks before it removes all."""
    return {"kind": "storage#managedFolders"}
