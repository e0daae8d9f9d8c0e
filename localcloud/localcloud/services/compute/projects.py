"""The project as Compute Engine sees it: common metadata, quotas, the default account."""

from __future__ import annotations

from localcloud.core import enablement, projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import not_found
from localcloud.core.hooks import service_enabled
from localcloud.core.operations import Work
from localcloud.services import policies
from localcloud.services.compute import catalog, operations, shared_vpc
from localcloud.services.compute.api import API
from localcloud.services.compute.fingerprints import fingerprint, require_match
from localcloud.services.compute.links import shown, url_of

_QUOTAS = {
    "NETWORKS": 50,
    "FIREWALLS": 500,
    "ROUTES": 500,
    "IMAGES": 2000,
    "CPUS_ALL_REGIONS": 2400,
}


def default_service_account(project: str) -> str:
    """Return the e-mail address of the Compute Engine default service account."""
    return f"{projects.number(project)}-compute@developer.gserviceaccount.com"


def common_metadata(cloud: Cloud, project: str) -> Json:
    """Return the instance metadata that all machines of the project share, with its fingerprint."""
    items = projects.common_metadata(cloud, project)
    return {"kind": "compute#metadata", "fingerprint": fingerprint(items), "items": items}


@API.method("projects.get", permission="compute.projects.get")
def get_project(cloud: Cloud, call: Call) -> Json:
    """Describe the project."""
    project = projects.find(cloud, call.project)
    if project is None:
        raise not_found(f"projects/{call.project}")
    lends = shared_vpc.is_host(cloud, call.project)
    return shown(
        call,
        {
            "kind": "compute#project",
            "id": project["projectNumber"],
            "creationTimestamp": project["createTime"],
            "name": call.project,
            "commonInstanceMetadata": common_metadata(cloud, call.project),
            "quotas": [{"metric": m, "limit": n, "usage": 0} for m, n in _QUOTAS.items()],
            "defaultServiceAccount": default_service_account(call.project),
            "defaultNetworkTier": "PREMIUM",
            "xpnProjectStatus": "HOST" if lends else "UNSPECIFIED_XPN_PROJECT_STATUS",
            "selfLink": url_of(f"projects/{call.project}"),
        },
    )


@API.method("projects.getXpnHost", permission="compute.projects.get")
def get_xpn_host(cloud: Cloud, call: Call) -> Json:
    """Answer which host project lends its networks to this one; nothing when none does."""
    host = shared_vpc.host_of(cloud, call.project)
    return {"kind": "compute#project", "name": host} if host else {}


@API.method(
    "projects.setCommonInstanceMetadata", permission="compute.projects.setCommonInstanceMetadata"
)
def set_common_metadata(cloud: Cloud, call: Call) -> Json:
    """Replace the metadata that all machines of the project share."""
    with cloud.store.locked():
        current = common_metadata(cloud, call.project)
        require_match(call.body.get("fingerprint"), current["fingerprint"], "metadata")
        projects.set_common_metadata(cloud, call.project, call.body.get("items", []))
    target = f"projects/{call.project}"
    work = Work("compute.settle", {"path": target}, cloud.seconds("compute.update"))
    kind = "compute.projects.setCommonInstanceMetadata"
    return operations.start(cloud, call, work, scope="global", kind=kind, target=target)


@service_enabled["compute.googleapis.com"]
def _begin(cloud: Cloud, project: str) -> None:
    _add_default_account(cloud, project)
    # The projects that publish images are Google's own, with Compute Engine in use.
    for publisher in catalog.image_projects():
        key = enablement.key(publisher, API.service)
        cloud.store.put(enablement.ENABLED, key, {"effective": 0.0})


def _add_default_account(cloud: Cloud, project: str) -> None:
    number = str(cloud.operations.number())
    # Google gives it the role of an editor unless an organization's policy forbids it.
    policies.add_account(
        cloud,
        project,
        default_service_account(project),
        "roles/editor",
        uniqueId=number,
        displayName="Compute Engine default service account",
        etag="MDEwMjE5MjA=",
        oauth2ClientId=number,
    )
