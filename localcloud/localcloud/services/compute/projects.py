"""Projects in Compute Engine: common metadata, quotas, the default account, Shared VPC."""

from localcloud.core import ApiError, Call, Cloud, Json, Work, invalid, not_found, projects
from localcloud.core.cloud import service_enabled
from localcloud.services import iam_policy
from localcloud.services.compute import api, catalog, resources
from localcloud.services.compute.api import API, shown, url_of, wrong_value

# Kept for clients that show them; nothing counts against them here.
_QUOTAS = {
    "NETWORKS": 50,
    "FIREWALLS": 500,
    "ROUTES": 500,
    "IMAGES": 2000,
    "CPUS_ALL_REGIONS": 2400,
}


def default_service_account(project: str) -> str:
    """Return the e-mail address of the Compute Engine default service account.

    It is made from the project's number, not its id.
    """
    return f"{projects.number(project)}-compute@developer.gserviceaccount.com"


def common_metadata(cloud: Cloud, project: str) -> Json:
    """Return the instance metadata that all machines of the project share, with its fingerprint."""
    items = projects.common_metadata(cloud, project)
    return {"kind": "compute#metadata", "fingerprint": resources.fingerprint(items), "items": items}


# Clients read the number, the default account and the common metadata of a project here.
@API.method("projects.get", permission="compute.projects.get")
def _get_project(cloud: Cloud, call: Call) -> Json:
    project = projects.find(cloud, call.project)
    if project is None:
        raise not_found(f"projects/{call.project}")
    lends = is_host(cloud, call.project)
    record = {
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
    }
    return shown(call, record)


@API.method(
    "projects.setCommonInstanceMetadata", permission="compute.projects.setCommonInstanceMetadata"
)
def set_common_metadata(cloud: Cloud, call: Call) -> Json:
    """Replace the project-wide metadata.

    All machines of the project see it, unless they have an item of the same key.
    """
    with cloud.store.locked():
        current = common_metadata(cloud, call.project)
        resources.require_match(call.body.get("fingerprint"), current["fingerprint"], "metadata")
        projects.set_common_metadata(cloud, call.project, call.body.get("items", []))
    kind = "compute.projects.setCommonInstanceMetadata"
    return _begin_change(cloud, call, kind, "compute.update")


def _begin_change(cloud: Cloud, call: Call, kind: str, latency: str) -> Json:
    target = f"projects/{call.project}"
    work = Work("compute.settle", {"path": target}, cloud.seconds(latency))
    return api.start(cloud, call, work, scope="global", kind=kind, target=target)


@service_enabled["compute.googleapis.com"]
def _begin(cloud: Cloud, project: str) -> None:
    # The projects that publish images are Google's own, with Compute Engine in use.
    for publisher in catalog.image_projects():
        key = projects.service_key(publisher, API.service)
        cloud.store.put(projects.ENABLED_SERVICE, key, {"effective": 0.0})
    number = str(cloud.operations.number())
    # Google gives it the role of an editor unless an organization's policy forbids it.
    iam_policy.add_account(
        cloud,
        project,
        default_service_account(project),
        "roles/editor",
        uniqueId=number,
        displayName="Compute Engine default service account",
        etag="MDEwMjE5MjA=",
        oauth2ClientId=number,
    )


# Shared VPC: a host project lends its networks to the service projects that are attached to it
# (cloud.google.com/vpc/docs/shared-vpc; in the API's reference it is called XPN). There are no
# organizations here, so a permission in the host project is enough to set it up.

_HOST = "compute-shared-vpc"


def host_of(cloud: Cloud, project: str) -> str:
    """Return the host project that a service project is attached to, or an empty string."""
    hosts = (host for host, record in cloud.store.items(_HOST) if project in record["attached"])
    return next(hosts, "")


def is_host(cloud: Cloud, project: str) -> bool:
    """Return whether a project lends its networks."""
    return cloud.store.get(_HOST, project) is not None


def require_lent(cloud: Cloud, project: str, path: str) -> None:
    """Refuse a network or subnetwork of a project that does not lend it to `project`.

    The right to use it is asked for separately: a host project lends to whom it lets use its
    subnetworks.
    """
    owner = path.split("/")[1]
    if owner not in (project, host_of(cloud, project)):
        why = f"'Cross-project references for this resource are not allowed: {path}.'."
        raise ApiError(400, f"Invalid resource usage: {why}", reason="invalidUsage")


def require_own(project: str, path: str) -> None:
    """Refuse a network of another project."""
    if path.split("/")[1] != project:
        why = "Cross project referencing is not allowed for this resource."
        raise wrong_value("resource.network", path, why)


@API.method("projects.enableXpnHost", permission="compute.organizations.enableXpnHost")
def _enable_host(cloud: Cloud, call: Call) -> Json:
    with cloud.store.locked():
        if host_of(cloud, call.project):
            raise invalid(f"The project '{call.project}' is attached to a host project itself.")
        if not is_host(cloud, call.project):
            cloud.store.put(_HOST, call.project, {"attached": []})
    return _begin_change(cloud, call, "enableXpnHost", "network.update")


@API.method("projects.enableXpnResource", permission="compute.organizations.enableXpnResource")
def _attach(cloud: Cloud, call: Call) -> Json:
    """Attach a service project to a host project; it can have only one."""
    resource = call.body.get("xpnResource", {})
    project = resource.get("id", "")
    if resource.get("type", "PROJECT") != "PROJECT" or not project:
        raise invalid("Invalid value for field 'xpnResource': a PROJECT with its id is required.")
    with cloud.store.locked():
        not_one = invalid(f"The project '{call.project}' is not a shared VPC host project.")
        attached = cloud.store.load(_HOST, call.project, not_one)["attached"]
        if is_host(cloud, project) or host_of(cloud, project) not in ("", call.project):
            raise invalid(f"'{project}' is a host project, or attached to another one.")
        cloud.store.put(_HOST, call.project, {"attached": sorted({*attached, project})})
    return _begin_change(cloud, call, "enableXpnResource", "network.update")
