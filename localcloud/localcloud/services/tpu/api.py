"""The Cloud TPU API's registration and the names of what it keeps."""

from __future__ import annotations

from localcloud.core.call import Call
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Api, Collection
from localcloud.core.store import Record
from localcloud.services.compute.catalog import is_on
from localcloud.services.tpu import catalog

API = Api("tpu", ("v1", "v2", "v2alpha1"))
V2 = ("v2", "v2alpha1")
NODES = Collection(API, "projects.locations.nodes", "tpu.nodes")

NODE = "tpu-node"
"""The store's kind of nodes; the key is the full name `projects/p/locations/z/nodes/n`."""
QUEUED = "tpu-queued-resource"
"""The store's kind of queued resources, by full name."""


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


def missing(name: str) -> ApiError:
    """Return the 404 for a resource by its full name."""
    return ApiError(404, f"Resource '{name}' was not found")


def bad_state(action: str, state: str) -> ApiError:
    """Return what Google answers to an action that a node's state forbids."""
    return invalid(
        f"Cloud TPU received a bad request. {action} is not supported while in state {state}"
    )
