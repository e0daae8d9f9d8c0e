"""Properties of instances and templates: labels, metadata, tags, scheduling, accounts."""

import re

from localcloud.core import ApiError, Cloud, access, invalid
from localcloud.core.call import CLOUD_PLATFORM, Call, Json, is_scope
from localcloud.services.compute import catalog, networks, projects, resources
from localcloud.services.compute.api import path_of, url_of, wrong_value

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST = 64
# Bytes: of one value, and of all keys and values.
_LONGEST_VALUE = 256 * 1024
_LONGEST_METADATA = 512 * 1024


def stored_labels(sent: dict[str, str]) -> dict[str, str]:
    """Return labels that Google takes.

    They are refused here in any call that has some: insert, setLabels, a template.
    """
    if len(sent) > _MOST:
        raise invalid(f"Invalid value for field 'labels': more than {_MOST} labels.")
    for key, value in sent.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(
                f'Invalid value for field \'labels\': "{key}": "{value}". Keys are 1-63 lower-case '
                "letters, digits, '_' and '-', beginning with a letter; values are at most 63 of "
                "them."
            )
    return sent


def stored_metadata(sent: Json) -> Json:
    """Return instance metadata as it is stored, with its fingerprint.

    The fingerprint is over the items alone, in their order: the same items have the same one.
    """
    items = sent.get("items", [])
    keys = [item.get("key", "") for item in items]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise wrong_value("resource.metadata", "", f"Duplicate metadata keys: {', '.join(twice)}.")
    for item in items:
        if not _METADATA_KEY.fullmatch(item.get("key", "")):
            why = f"Must be a match of regex '{_METADATA_KEY.pattern}'"
            raise wrong_value("metadata.items[].key", item.get("key", ""), why)
        if len(item.get("value", "").encode()) > _LONGEST_VALUE:
            raise invalid(
                f"Value for field 'metadata.items[{item['key']}].value' is too large: maximum size "
                f"{_LONGEST_VALUE} character(s)."
            )
    if sum(len(i["key"]) + len(i.get("value", "").encode()) for i in items) > _LONGEST_METADATA:
        raise invalid(f"The metadata is larger than {_LONGEST_METADATA} bytes in all.")
    stored: Json = {"kind": "compute#metadata"}
    if items:
        stored["items"] = items
    return stored | {"fingerprint": resources.fingerprint(items)}


def stored_tags(sent: Json) -> Json:
    """Return network tags as they are stored, with their fingerprint.

    Tags are a set, which Google shows sorted.
    """
    items = sent.get("items", [])
    if len(items) > _MOST or len(set(items)) < len(items):
        raise invalid(f"Invalid value for field 'tags': at most {_MOST} tags, each once.")
    for tag in items:
        if not _TAG.fullmatch(tag):
            raise wrong_value("tags.items[]", tag, f"Must be a match of regex '{_TAG.pattern}'")
    stored: Json = {"items": sorted(items)} if items else {}
    return stored | {"fingerprint": resources.fingerprint(sorted(items))}


def full_scheduling(sent: Json) -> Json:
    """Return completed scheduling options: preemptible machines neither restart nor migrate."""
    # `preemptible` says both: an old preemptible instance, and a spot one.
    spot = sent.get("provisioningModel") == "SPOT"
    flexible = sent.get("provisioningModel") == "FLEX_START"
    short = spot or sent.get("preemptible", False)
    full = {
        "onHostMaintenance": "TERMINATE" if short else "MIGRATE",
        "automaticRestart": not short and not flexible,
        "provisioningModel": "STANDARD",
        **sent,
        "preemptible": short,
    }
    if flexible:
        _require_end(full)
    if duration := full.get("maxRunDuration"):
        _require_length(int(duration.get("seconds", 0)))
    if short and full["automaticRestart"]:
        raise invalid("Scheduling must have preemptible be false when AutomaticRestart is true.")
    if short and full["onHostMaintenance"] != "TERMINATE":
        why = "Preemptible and spot instances must use TERMINATE."
        raise wrong_value("scheduling.onHostMaintenance", full["onHostMaintenance"], why)
    ends = spot or "maxRunDuration" in full or full["provisioningModel"] == "RESERVATION_BOUND"
    if "instanceTerminationAction" in full and not ends:
        raise wrong_value(
            "scheduling.instanceTerminationAction",
            full["instanceTerminationAction"],
            "It needs the provisioning model SPOT or RESERVATION_BOUND, or a maxRunDuration.",
        )
    if spot:
        full.setdefault("instanceTerminationAction", "STOP")
    return full


# Seconds (10 minutes to 7 days): docs.cloud.google.com/tpu/docs/request-using-flex-start, 2025-09.
_SHORTEST_RUN, _LONGEST_RUN = 600, 7 * 86400


# Seconds: docs.cloud.google.com/compute/docs/instances/limit-vm-runtime, "Restrictions".
_SHORTEST, _LONGEST = 30, 120 * 86400


def _require_length(seconds: int) -> None:
    if not _SHORTEST <= seconds <= _LONGEST:
        why = "The run duration must be 30 seconds to 120 days."
        raise wrong_value("scheduling.maxRunDuration", seconds, why)


def _require_end(full: Json) -> None:
    """Refuse flex-start without an end, by the rules that Google's provider names."""
    seconds = int(full.get("maxRunDuration", {}).get("seconds", 0))
    if not _SHORTEST_RUN <= seconds <= _LONGEST_RUN:
        why = "Flex-start instances need one of 10 minutes to 7 days."
        raise wrong_value("scheduling.maxRunDuration", seconds, why)
    if full["automaticRestart"] or full.get("instanceTerminationAction") != "DELETE":
        why = "Flex-start instances need DELETE, and automaticRestart false."
        given = full.get("instanceTerminationAction", "")
        raise wrong_value("scheduling.instanceTerminationAction", given, why)


# Seconds: docs.cloud.google.com/compute/docs/instances/create-flex-start-vm, which names no others.
_SHORTEST_WAIT, _LONGEST_WAIT = 90, 2 * 3600


def wait_of(body: Json) -> int:
    """Return for how many seconds the request for an instance may wait for capacity."""
    field = "params.requestValidForDuration"
    seconds = int(body.get("params", {}).get("requestValidForDuration", {}).get("seconds", 0))
    if seconds and body.get("scheduling", {}).get("provisioningModel") != "FLEX_START":
        raise wrong_value(field, seconds, "Only requests for flex-start wait.")
    if seconds and not _SHORTEST_WAIT <= seconds <= _LONGEST_WAIT:
        raise wrong_value(field, seconds, "The wait must be 0, or 90 seconds to 2 hours.")
    return seconds


def full_shielding(sent: Json) -> Json:
    """Return shielded VM options, completed.

    Integrity monitoring compares what the virtual TPM has measured.
    """
    full = {"enableSecureBoot": False, "enableVtpm": True, "enableIntegrityMonitoring": True} | sent
    if full["enableIntegrityMonitoring"] and not full["enableVtpm"]:
        why = "integrity monitoring needs the vTPM."
        raise invalid(f"Invalid value for field 'resource.shieldedInstanceConfig': {why}")
    return full


def service_accounts(cloud: Cloud, call: Call, sent: list[Json]) -> list[Json]:
    """Return the service accounts that an instance gets: none or one that the caller may use.

    `default` stands for the Compute Engine default account. An account without scopes could do
    nothing.
    """
    if not sent or not sent[0].get("email"):
        return []
    if len(sent) > 1:
        raise invalid("Invalid value for field 'resource.serviceAccounts': at most one is allowed.")
    email = sent[0]["email"]
    if email == "default":
        email = projects.default_service_account(call.project)
    # One message for both: it tells a caller without the right nothing of which accounts exist.
    # The right is looked at in any case, so that `localcloud permissions` lists it.
    if not access.may_act_as(cloud, call, email) or access.account_problem(cloud, email):
        message = (
            f"The user does not have access to service account '{email}'. User: "
            f"'{call.principal.email}'. Ask a project owner to grant you the "
            "iam.serviceAccountUser role on the service account"
        )
        raise ApiError(400, message, reason="SERVICE_ACCOUNT_ACCESS_DENIED")
    scopes = sent[0].get("scopes", [])
    if not scopes:
        raise wrong_value("resource.serviceAccounts[0].scopes", "", "At least one scope is needed.")
    for scope in scopes:
        if not is_scope(scope):
            why = f"Scopes are URLs such as {CLOUD_PLATFORM}."
            raise wrong_value("resource.serviceAccounts[0].scopes[]", scope, why)
    return [{"email": email, "scopes": list(scopes)}]


# Instance templates, which never change.


# A template has no zone: machine type and disk type are names, and images are resolved for each
# instance.
def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    if record.get("sourceInstance"):
        raise ApiError(501, "the local cloud makes templates from their own properties only")
    properties = record.get("properties", {})
    for field in ("machineType", "disks", "networkInterfaces"):
        if not properties.get(field):
            raise wrong_value(f"resource.properties.{field}", "", "Required.")
    if "/" in properties["machineType"]:
        why = "The name alone is needed, such as n1-standard-2."
        raise wrong_value("resource.properties.machineType", properties["machineType"], why)
    _complete(cloud, call.project, properties)
    record["properties"] = properties


# A wrong template is refused when it is made, not when a group first uses it.
def _complete(cloud: Cloud, project: str, properties: Json) -> None:
    """Check and write down in full what does not depend on the zone of a later instance."""
    if properties.get("labels"):
        stored_labels(properties["labels"])
    properties["metadata"] = stored_metadata(properties.get("metadata", {}))
    tags = stored_tags(properties.get("tags", {})).get("items")
    properties["tags"] = {"items": tags} if tags else {}
    properties["scheduling"] = full_scheduling(properties.get("scheduling", {}))
    if "shieldedInstanceConfig" in properties:
        properties["shieldedInstanceConfig"] = full_shielding(properties["shieldedInstanceConfig"])
    for index, disk in enumerate(properties["disks"]):
        disk |= {"kind": "compute#attachedDisk", "index": index}
        disk.setdefault("type", "PERSISTENT")
        disk.setdefault("mode", "READ_WRITE")
        disk.setdefault("deviceName", f"persistent-disk-{index}")
        source = disk.get("initializeParams", {}).get("sourceImage")
        if source:
            # Families stay what they are: every instance gets the newest image.
            catalog.resolve_image(project, source)
            disk["initializeParams"]["sourceImage"] = url_of(path_of(source, project))
    for number, interface in enumerate(properties["networkInterfaces"]):
        interface |= {"kind": "compute#networkInterface", "name": f"nic{number}"}
        interface.pop("fingerprint", None)
        if interface.get("network"):
            path = networks.require_network(cloud, project, interface["network"])
            interface["network"] = url_of(path)
        if interface.get("subnetwork"):
            interface["subnetwork"] = url_of(path_of(interface["subnetwork"], project))


TEMPLATE = resources.Kind(
    collection="instanceTemplates",
    parameter="instanceTemplate",
    scope="global",
    defaults={"description": ""},
    prepare=_prepare,
    inserts="compute.instanceTemplates.insert",
)
resources.serve(TEMPLATE)


def require_template(cloud: Cloud, call: Call, reference: str) -> str:
    """Return the path of a template that the caller may use and names by its name or id."""
    path, _ = resources.load_named(cloud, path_of(reference.partition("?")[0], call.project))
    resources.require_permission(cloud, call, "compute.instanceTemplates.useReadOnly")
    return path


def body_of(template: Json, name: str) -> Json:
    """Return the request for an instance like the template.

    Templates have the fields of the request, not those of an instance: nothing is to be left out.
    """
    return {**template["properties"], "name": name}
