"""Instance templates: what a new instance gets, written down once and never changed."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute import images
from localcloud.services.compute.instances import checks
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.links import path_of, url_of
from localcloud.services.compute.networks import require_network
from localcloud.services.compute.resources import load_named, require_permission, serve


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    if record.get("sourceInstance"):
        raise ApiError(501, "the local cloud makes templates from their own properties only")
    properties = record.get("properties", {})
    for field in ("machineType", "disks", "networkInterfaces"):
        if not properties.get(field):
            raise invalid(f"Invalid value for field 'resource.properties.{field}': ''. Required.")
    if "/" in properties["machineType"]:
        raise invalid(
            "Invalid value for field 'resource.properties.machineType': "
            f"'{properties['machineType']}'. The name alone is needed, such as n1-standard-2."
        )
    _complete(cloud, call.project, properties)
    record["properties"] = properties


def _complete(cloud: Cloud, project: str, properties: Json) -> None:
    """Check and write down in full what does not depend on the zone of a later instance."""
    if properties.get("labels"):
        checks.labels(properties["labels"])
    properties["metadata"] = checks.metadata(properties.get("metadata", {}))
    tags = checks.tags(properties.get("tags", {})).get("items")
    properties["tags"] = {"items": tags} if tags else {}
    properties["scheduling"] = checks.scheduling(properties.get("scheduling", {}))
    if "shieldedInstanceConfig" in properties:
        properties["shieldedInstanceConfig"] = checks.shielded(properties["shieldedInstanceConfig"])
    for index, disk in enumerate(properties["disks"]):
        disk |= {"kind": "compute#attachedDisk", "index": index}
        disk.setdefault("type", "PERSISTENT")
        disk.setdefault("mode", "READ_WRITE")
        disk.setdefault("deviceName", f"persistent-disk-{index}")
        source = disk.get("initializeParams", {}).get("sourceImage")
        if source:
            # Families stay what they are: every instance gets the newest image.
            images.resolve(project, source)
            disk["initializeParams"]["sourceImage"] = url_of(path_of(source, project))
    for number, interface in enumerate(properties["networkInterfaces"]):
        interface |= {"kind": "compute#networkInterface", "name": f"nic{number}"}
        interface.pop("fingerprint", None)
        if interface.get("network"):
            interface["network"] = url_of(require_network(cloud, project, interface["network"]))
        if interface.get("subnetwork"):
            interface["subnetwork"] = url_of(path_of(interface["subnetwork"], project))


KIND = Kind(
    collection="instanceTemplates",
    parameter="instanceTemplate",
    scope="global",
    defaults={"description": ""},
    prepare=_prepare,
    inserts="compute.instanceTemplates.insert",
)
serve(KIND)


def require_template(cloud: Cloud, call: Call, reference: str) -> str:
    """Return the path of a template that the caller may use and names by its name or id."""
    path, _ = load_named(cloud, path_of(reference.partition("?")[0], call.project))
    require_permission(cloud, call, "compute.instanceTemplates.useReadOnly")
    return path


def body_of(template: Json, name: str) -> Json:
    """Return the request for an instance like the template."""
    return {**template["properties"], "name": name}
