"""A metadata server for shells, as far as TensorFlow asks one: where does the caller run?

`TPUClusterResolver(NAME)` takes project and zone from the metadata server of the VM that it runs
on. A shell of the local cloud runs on none, and gets the zone of the newest TPU.
"""

from __future__ import annotations

from localcloud.core import projects
from localcloud.core.call import Request, Response
from localcloud.core.cloud import Cloud
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import NODE, zone_of

ROOT = "/computeMetadata/v1/"
_FLAVOR = "Metadata-Flavor"


def answer(cloud: Cloud, request: Request) -> Response:
    """Return the value at the request's path, in plain text."""
    headers = {_FLAVOR: "Google", "Content-Type": "application/text"}
    if request.headers.get(_FLAVOR) != "Google":
        return Response(403, f"missing required header: {_FLAVOR}:Google\n".encode(), headers)
    value = _values(cloud).get(request.path.removeprefix(ROOT))
    if value is None:
        return Response(404, b"a shell has no such metadata\n", headers)
    return Response(200, value.encode(), headers)


def _values(cloud: Cloud) -> dict[str, str]:
    project = projects.DEFAULT_PROJECT
    number = projects.number(project)
    return {
        "instance/maintenance-event": "NONE",
        "instance/zone": f"projects/{number}/zones/{_zone(cloud)}",
        "project/numeric-project-id": number,
        "project/project-id": project,
    }


def _zone(cloud: Cloud) -> str:
    nodes = [record for _, record in cloud.store.items(NODE)]
    newest = max(nodes, key=lambda record: int(record["id"]), default=None)
    return zone_of(newest["name"]) if newest else catalog.zones()[0]
