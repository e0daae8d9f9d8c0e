"""The Cloud TPU API: its names, operations, locations, and what each version shows.

A stored node has the fields of v2alpha1 and, for a classic one, those that only v1 has. Names that
begin with `_` are the emulator's own.
"""

from collections.abc import Callable
from ipaddress import IPv4Network
from typing import Any

from localcloud.core import Api, ApiError, Cloud, Collection, document, invalid, projects, rfc3339
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import service_enabled
from localcloud.core.store import EMPTY, Record, Work, show_operation
from localcloud.services import iam_policy
from localcloud.services.compute.catalog import is_on
from localcloud.services.tpu import catalog

API = Api("tpu", ("v1", "v2", "v2alpha1"))
V2 = ("v2", "v2alpha1")
NODES = Collection(API, "projects.locations.nodes", "tpu.nodes")

NODE = "tpu-node"
"""The store's kind of nodes; the key is the full name `projects/p/locations/z/nodes/n`."""
QUEUED = "tpu-queued-resource"
"""The store's kind of queued resources, by full name."""
_NEWER_THAN_V1 = {"V2": "V2_ALPHA1"}
_OPERATIONS = "tpu/"
_TYPE = "type.googleapis.com/google.cloud.tpu"


def place(call: Call, cloud: Cloud | None = None) -> str:
    """Return the location in the path, `projects/p/locations/z`, whose zone must have TPUs.

    With a cloud, the project must see the zone too: it may be an AI zone.

    Raises:
        ApiError: 403, as Google answers for a zone that is unknown to the TPU API.
    """
    zone = call.params["locationsId"]
    if zone not in catalog.zones() or (cloud and not is_on(cloud, zone)):
        raise ApiError(403, f"Location {zone} is not found or access is unauthorized.")
    return f"projects/{call.project}/locations/{zone}"


def node_name(call: Call, cloud: Cloud) -> str:
    """Return the full name of the node in the path."""
    return f"{place(call, cloud)}/nodes/{call.params['nodesId']}"


def zone_of(name: str) -> str:
    """Return the zone in a full name."""
    return name.split("/")[3]


def project_of(name: str) -> str:
    """Return the project in a full name."""
    return name.split("/")[1]


def load(cloud: Cloud, kind: str, name: str) -> Record:
    """Return the stored resource; 404 when there is none."""
    return cloud.store.load(kind, name, missing(name))


def listed(cloud: Cloud, call: Call, kind: str) -> list[Record]:
    """Return the stored resources of a zone, or of all zones for the location `-`."""
    everywhere = call.params["locationsId"] == "-"
    prefix = f"projects/{call.project}/locations/" if everywhere else f"{place(call)}/"
    return [record for _, record in cloud.store.items(kind, prefix)]


def missing(name: str) -> ApiError:
    """Return the 404 for a resource by its full name."""
    return ApiError(404, f"Resource '{name}' was not found")


def bad_state(action: str, state: str) -> ApiError:
    """Return what Google answers to an action that a node's state forbids."""
    return invalid(
        f"Cloud TPU received a bad request. {action} is not supported while in state {state}"
    )


def node_view(record: Record, version: str) -> Json:
    """Return a node in `version`: v1 shows TPU VMs too, v2 shows classic nodes too."""
    view, taken = dict(record), record.get("_addresses")
    if taken and "cidrBlock" not in record:
        # Google shows the block that the hosts' addresses are of.
        prefix = catalog.accelerators()[record["acceleratorType"]].prefix
        view["cidrBlock"] = str(IPv4Network((taken[0], prefix), strict=False))
    (_as_v1 if version == "v1" else _as_v2)(view)
    if version != "v2":
        view["apiVersion"] = _NEWER_THAN_V1.get(view["apiVersion"], view["apiVersion"])
    return _known(view, version, "Node")


def queued_view(record: Record, version: str) -> Json:
    """Return a queued resource in `version`."""
    return _known(record, version, "QueuedResource")


# v1 also has the first host's address and port as fields of the node, and the account as text.
def _as_v1(view: Json) -> None:
    account = view.get("serviceAccount")
    if isinstance(account, dict):
        view["serviceAccount"] = account["email"]
    view.setdefault("tensorflowVersion", view.get("runtimeVersion"))
    endpoints = view.get("networkEndpoints", [])
    if endpoints:
        view["ipAddress"] = endpoints[0]["ipAddress"]
        view["port"] = str(endpoints[0]["port"])
    if "networkConfig" in view:
        view["network"] = view["networkConfig"]["network"]


# v2 names the runtime and the network otherwise.
def _as_v2(view: Json) -> None:
    if isinstance(view.get("serviceAccount"), str):
        view["serviceAccount"] = {"email": view["serviceAccount"]}
    view.setdefault("runtimeVersion", view.get("tensorflowVersion"))
    if "network" in view:
        view["networkConfig"] = {"network": view["network"]}


def _known(record: Json, version: str, schema: str) -> Json:
    """Return the fields of `record`, at every depth, that the schema of this version has.

    The API leaves out what is false.
    """
    schemas = document("tpu", version).schemas
    known = schemas[schema].get("properties", {})
    return {
        key: _fitted(value, version, known[key])
        for key, value in record.items()
        if key in known and value is not None and value is not False
    }


def _fitted(value: Any, version: str, spec: Json) -> Any:
    if "$ref" in spec:
        return _known(value, version, spec["$ref"])
    if spec.get("type") == "array":
        return [_fitted(item, version, spec["items"]) for item in value]
    return value


def start_operation(cloud: Cloud, call: Call, work: Work, *, verb: str, target: str) -> Json:
    """Begin an operation and answer it.

    Args:
        call: the call that asks for it.
        work: what it does; the effect returns the resource's record, or None.
        verb: such as `create`.
        target: full name of the resource.
    """
    now = int(cloud.clock.now() * 1000)
    name = f"{place(call)}/operations/operation-{now}-{cloud.operations.number():x}"
    about = {"verb": verb, "target": target, "version": call.method.version}
    return _show(name, cloud.operations.start(_OPERATIONS + name, work, about))


def _show(name: str, record: Record) -> Json:
    """Return an operation as the version that began it shows it: gRPC asks with none."""
    version = record["about"]["version"]
    metadata: Json = {
        "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
        "createTime": rfc3339(record["started"]),
        "target": record["about"]["target"],
        "verb": record["about"]["verb"],
        "cancelRequested": False,
        "apiVersion": version,
    }

    def response(made: Json) -> Json:
        # v2alpha1 answers what was deleted of the queue (`operation_info` in both cloud_tpu.proto).
        if (metadata["verb"], version) == ("delete", "v2"):
            return EMPTY
        if "/nodes/" in record["about"]["target"]:
            # A node's health is not known yet when its creation is done.
            content = made | ({"health": None} if metadata["verb"] == "create" else {})
            return {"@type": f"{_TYPE}.{version}.Node", **node_view(content, version)}
        return {"@type": f"{_TYPE}.{version}.QueuedResource", **queued_view(made, version)}

    return show_operation(name, metadata, record, response)


@API.method("projects.locations.operations.get", permission="tpu.operations.get")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Return the state of an operation.

    Those of nodes and of queued resources are in one collection.
    """
    name = f"{place(call)}/operations/{call.params['operationsId']}"
    return _show(name, cloud.operations.load(_OPERATIONS + name, missing(name)))


@API.method("projects.locations.operations.list", permission="tpu.operations.list")
def list_operations(cloud: Cloud, call: Call) -> Json:
    """List a location's operations."""
    found = cloud.operations.items(f"{_OPERATIONS}{place(call)}/operations/")
    return page(call, "operations", [_show(k.removeprefix(_OPERATIONS), r) for k, r in found])


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


def _accelerator_types(call: Call) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for one in catalog.in_zone(call.params["locationsId"]):
        configs = [{"type": one.type, "topology": one.topology}]
        newer = {} if call.method.version == "v1" else {"acceleratorConfigs": configs}
        found[one.name] = {"type": one.name, **newer}
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


_serve("acceleratorTypes", _accelerator_types)
_serve("runtimeVersions", lambda call: _versions(catalog.runtime_versions()), V2)
_serve("tensorflowVersions", lambda call: _versions(catalog.tensorflow_versions()), ("v1",))


# Both are made when the API is enabled, before the first node: users grant them rights first.
@service_enabled["tpu.googleapis.com"]
def _add_accounts(cloud: Cloud, project: str) -> None:
    iam_policy.add_account(cloud, project, service_identity(project), "roles/tpu.serviceAgent")
    iam_policy.add_account(cloud, project, network_agent(project), "roles/cloudtpu.serviceAgent")
