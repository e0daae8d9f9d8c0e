"""Locations and what they offer."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core import projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.hooks import service_enabled
from localcloud.core.registry import Collection
from localcloud.services import iam_policy
from localcloud.services.compute.catalog import is_on
from localcloud.services.paging import page
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import API, V2, missing, place


def service_identity(project: str) -> str:
    """Return the account as which Cloud TPU acts in a project; classic nodes read data as it."""
    return f"service-{projects.number(project)}@cloud-tpu.iam.gserviceaccount.com"


def network_agent(project: str) -> str:
    """Return the account as which Cloud TPU makes TPU VMs in a project's networks.

    Source: cloud.google.com/iam/docs/service-agents, "TPU Service Agent (v2)".
    """
    return f"service-{projects.number(project)}@gcp-sa-tpu.iam.gserviceaccount.com"


def _location(project: str, zone: str) -> Json:
    return {
        "name": f"projects/{project}/locations/{zone}",
        "locationId": zone,
        "labels": {"cloud.googleapis.com/region": zone.rpartition("-")[0]},
    }


@API.method("projects.locations.get", permission="tpu.locations.get")
def get_location(cloud: Cloud, call: Call) -> Json:
    """Describe a zone."""
    place(call, cloud)
    return _location(call.project, call.params["locationsId"])


@API.method("projects.locations.list", permission="tpu.locations.list")
def list_locations(cloud: Cloud, call: Call) -> Json:
    """List the zones with TPUs."""
    visible = [zone for zone in catalog.zones() if is_on(cloud, zone)]
    return page(call, "locations", [_location(call.project, zone) for zone in visible])


def _accelerators(call: Call) -> dict[str, Json]:
    found = {}
    for accelerator in catalog.in_zone(call.params["locationsId"]):
        shown: Json = {"type": accelerator.name}
        if call.method.version != "v1":
            config = {"type": accelerator.type, "topology": accelerator.topology}
            shown["acceleratorConfigs"] = [config]
        found[accelerator.name] = shown
    return found


def _versions(known: tuple[str, ...]) -> dict[str, Json]:
    return {version: {"version": version} for version in known}


def _serve(
    name: str, offered: Callable[[Call], dict[str, Json]], versions: tuple[str, ...] | None = None
) -> None:
    """Register `get` and `list` of what a zone offers, in the collection `name`."""
    collection = Collection(API, f"projects.locations.{name}", f"tpu.{name.lower()}")

    def view(call: Call, short: str, about: Json) -> Json:
        return {"name": f"{place(call)}/{name}/{short}", **about}

    @collection.method("get", versions=versions)
    def get(cloud: Cloud, call: Call) -> Json:
        short, at = call.params[f"{name}Id"], place(call, cloud)
        known = offered(call)
        if short not in known:
            raise missing(f"{at}/{name}/{short}")
        return view(call, short, known[short])

    @collection.method("list", versions=versions)
    def list_(cloud: Cloud, call: Call) -> Json:
        place(call, cloud)
        return page(call, name, [view(call, *item) for item in offered(call).items()])


_serve("acceleratorTypes", _accelerators)
_serve("runtimeVersions", lambda call: _versions(catalog.runtime_versions()), V2)
_serve("tensorflowVersions", lambda call: _versions(catalog.tensorflow_versions()), ("v1",))


@API.method(
    "projects.locations.generateServiceIdentity", permission="tpu.locations.get", versions=V2
)
def generate_service_identity(cloud: Cloud, call: Call) -> Json:
    """Return name the account as which Cloud TPU acts in the project."""
    place(call)
    return {"identity": {"email": service_identity(call.project)}}


@service_enabled["tpu.googleapis.com"]
def _begin(cloud: Cloud, project: str) -> None:
    iam_policy.add_account(cloud, project, service_identity(project), "roles/tpu.serviceAgent")
    iam_policy.add_account(cloud, project, network_agent(project), "roles/cloudtpu.serviceAgent")
