"""Locations and what they offer."""

from __future__ import annotations

from localcloud.core import accounts, projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.hooks import service_enabled
from localcloud.services import policies
from localcloud.services.paging import page
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import API, V2, place


def service_identity(project: str) -> str:
    """Return the account as which Cloud TPU acts in a project; classic nodes read data as it."""
    return f"service-{projects.number(project)}@cloud-tpu.iam.gserviceaccount.com"


def _location(project: str, zone: str) -> Json:
    return {
        "name": f"projects/{project}/locations/{zone}",
        "locationId": zone,
        "labels": {"cloud.googleapis.com/region": zone.rpartition("-")[0]},
    }


@API.method("projects.locations.get", permission="tpu.locations.get")
def get_location(cloud: Cloud, call: Call) -> Json:
    """Describe a zone."""
    place(call)
    return _location(call.project, call.params["locationsId"])


@API.method("projects.locations.list", permission="tpu.locations.list")
def list_locations(cloud: Cloud, call: Call) -> Json:
    """List the zones with TPUs."""
    return page(call, "locations", [_location(call.project, zone) for zone in catalog.zones()])


def _accelerator(call: Call, accelerator: catalog.Accelerator) -> Json:
    shown: Json = {
        "name": f"{place(call)}/acceleratorTypes/{accelerator.name}",
        "type": accelerator.name,
    }
    if call.method.version != "v1":
        config = {"type": accelerator.type, "topology": accelerator.topology}
        shown["acceleratorConfigs"] = [config]
    return shown


@API.method("projects.locations.acceleratorTypes.list", permission="tpu.acceleratortypes.list")
def list_accelerators(cloud: Cloud, call: Call) -> Json:
    """List the TPU types of a zone."""
    place(call)
    found = catalog.in_zone(call.params["locationsId"])
    return page(call, "acceleratorTypes", [_accelerator(call, one) for one in found])


@API.method("projects.locations.acceleratorTypes.get", permission="tpu.acceleratortypes.get")
def get_accelerator(cloud: Cloud, call: Call) -> Json:
    """Describe a TPU type, if the zone has it."""
    name = f"{place(call)}/acceleratorTypes/{call.params['acceleratorTypesId']}"
    for accelerator in catalog.in_zone(call.params["locationsId"]):
        if accelerator.name == call.params["acceleratorTypesId"]:
            return _accelerator(call, accelerator)
    raise ApiError(404, f"Resource '{name}' was not found")


def _version(call: Call, collection: str, version: str) -> Json:
    return {"name": f"{place(call)}/{collection}/{version}", "version": version}


def _serve_versions(
    collection: str, known: tuple[str, ...], versions: tuple[str, ...] | None
) -> None:
    def get(cloud: Cloud, call: Call) -> Json:
        version = call.params[f"{collection}Id"]
        if version not in known:
            raise ApiError(404, f"Resource '{place(call)}/{collection}/{version}' was not found")
        return _version(call, collection, version)

    def list_(cloud: Cloud, call: Call) -> Json:
        return page(call, collection, [_version(call, collection, one) for one in known])

    at, permission = f"projects.locations.{collection}.", f"tpu.{collection.lower()}."
    API.method(f"{at}get", permission=f"{permission}get", versions=versions)(get)
    API.method(f"{at}list", permission=f"{permission}list", versions=versions)(list_)


_serve_versions("runtimeVersions", catalog.runtime_versions(), V2)
_serve_versions("tensorflowVersions", catalog.tensorflow_versions(), ("v1",))


@API.method(
    "projects.locations.generateServiceIdentity", permission="tpu.locations.get", versions=V2
)
def generate_service_identity(cloud: Cloud, call: Call) -> Json:
    """Return name the account as which Cloud TPU acts in the project."""
    place(call)
    return {"identity": {"email": service_identity(call.project)}}


@service_enabled["tpu.googleapis.com"]
def _begin(cloud: Cloud, project: str) -> None:
    email = service_identity(project)
    name = f"projects/{project}/serviceAccounts/{email}"
    if cloud.store.get(accounts.ACCOUNT, name) is None:
        record = {"name": name, "projectId": project, "email": email}
        cloud.store.put(accounts.ACCOUNT, name, record)
        member = f"serviceAccount:{email}"
        policies.grant(cloud, f"projects/{project}", "roles/tpu.serviceAgent", member)
