"""Checks a node before it is created: type, network, addresses, account, disks, quota, stock."""

import re
from ipaddress import IPv4Network

from localcloud.core import SETTING, ApiError, Cloud, Record, access, errors, invalid, projects
from localcloud.core.call import CLOUD_PLATFORM, Call, Json, Principal, is_scope
from localcloud.services.compute import disks, instance_properties, networks, resources
from localcloud.services.compute.api import STORE, last, path_from, url_of
from localcloud.services.compute.projects import default_service_account
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import NODE, QUEUED, network_agent, project_of, zone_of

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST_DESCRIPTION = 512
# Google keeps the first two and the last two addresses of every range.
_RESERVED_ADDRESSES = 4
_DEFAULT_TYPE = "v2-8"
# Those of a TPU VM whose maker names none, as the API showed them in 2025. The last is added to
# all: tpuServiceAccountAddedScopesSuppress in the Terraform provider's resource_tpu_v2_vm.go.
_SCOPES = (
    "https://www.googleapis.com/auth/devstorage.read_write",
    "https://www.googleapis.com/auth/logging.write",
    "https://www.googleapis.com/auth/service.management",
    "https://www.googleapis.com/auth/servicecontrol",
    CLOUD_PLATFORM,
    "https://www.googleapis.com/auth/pubsub",
)
# The size of a TPU VM's image.
_SMALLEST_BOOT_GB = 100
# Source: cloud.google.com/tpu/docs/internal-ip-blocks, "Manual IP address configuration".
_AUTOMATIC = IPv4Network("10.240.0.0/12")
_WRITE = "READ_WRITE"
# Disks of these kinds attach to a single machine, unless their access mode says otherwise.
_UNSHARED = ("hyperdisk-balanced", "hyperdisk-ml")
# A worker takes about 400 MiB; a machine that runs the local cloud has room for a few of them.
_HOSTS = 16


def wrong(what: str, value: str, why: str) -> ApiError:
    """Return the 400 for a value, in the words that all of Cloud TPU uses."""
    return invalid(f'Cloud TPU received an invalid {what}, "{value}"{why}')


def require_name(name: str, what: str) -> None:
    """Refuse a name that breaks the TPU API's rules; `what` is the parameter, such as `nodeId`."""
    if not _NAME.fullmatch(name):
        rule = "lower-case letters, digits and hyphens, beginning with a letter, at most 63."
        raise wrong(what, name, f". It must match {_NAME.pattern}: {rule}")


def accelerator(zone: str, body: Json) -> catalog.Accelerator:
    """Return the TPU type that a new node asks for, by `acceleratorType` or `acceleratorConfig`.

    Raises ApiError: 400 for both, or a type that the zone does not have.
    """
    offered = catalog.in_zone(zone)
    config = body.get("acceleratorConfig")
    if config and body.get("acceleratorType"):
        raise invalid("Only one of accelerator_type and accelerator_config may be given.")
    asked = body.get("acceleratorType") or _DEFAULT_TYPE
    if config:
        asked = f"{config.get('type')} {config.get('topology')}"
    for one in offered:
        if asked == (f"{one.type} {one.topology}" if config else one.name):
            return one
    known = ", ".join(one.name for one in offered)
    raise wrong("AcceleratorType", asked, f' for zone "{zone}". Accepted values are {known}.')


def require_common(body: Json) -> None:
    """Refuse a malformed description, labels or tags."""
    if len(body.get("description", "")) > _LONGEST_DESCRIPTION:
        raise invalid(f"The description must have at most {_LONGEST_DESCRIPTION} characters.")
    instance_properties.stored_labels(body.get("labels", {}))
    for tag in body.get("tags", []):
        if not _NAME.fullmatch(tag):
            raise wrong("tag", tag, f". Tags match {_NAME.pattern}.")


def require_runtime(version: str, accelerator: catalog.Accelerator) -> None:
    """Refuse a runtime version that does not exist or does not run on the type."""
    if version not in catalog.runtime_versions():
        known = ", ".join(catalog.runtime_versions())
        raise wrong("RuntimeVersion", version, f". Accepted values are {known}.")
    if not catalog.runs_on(version, accelerator):
        raise invalid(f'RuntimeVersion "{version}" does not support {accelerator.name}.')


def network(cloud: Cloud, call: Call, zone: str, config: Json) -> tuple[Json, str]:
    """Return the network configuration of a TPU VM, completed, and the network's path.

    Raises:
        ApiError: 404 when the network or subnetwork does not exist, 400 when they don't fit, 403
            when Cloud TPU may not use those of a Shared VPC.
    """
    project = call.project
    name, subnet_name = (by_id(cloud, config.get(key, "")) for key in ("network", "subnetwork"))
    # A subnetwork alone says which network it is in; without both it is the default one.
    alone = subnet_name and not name
    path = "" if alone else networks.require_network(cloud, project, name)
    subnet = networks.require_subnetwork(cloud, project, zone, subnet_name, path)
    path = path or path_from(subnet["network"])
    _require_agent(cloud, project, path_from(subnet["selfLink"]))
    return config | {"network": path, "subnetwork": path_from(subnet["selfLink"])}, path


def _require_agent(cloud: Cloud, project: str, subnet: str) -> None:
    """Refuse a Shared VPC's subnetwork that the service's own account may not use.

    Source: cloud.google.com/tpu/docs/shared-vpc-networks (the role TPU Shared VPC Agent).
    """
    host = "/".join(subnet.split("/")[:2])
    if host == f"projects/{project}":
        return
    agent = network_agent(project)
    caller = Principal(f"serviceAccount:{agent}")
    if not access.has(cloud, caller, "compute.subnetworks.use", [subnet, host]):
        cure = f"grant roles/tpu.xpnAgent on {host} to {agent}."
        raise ApiError(403, f"Required 'compute.subnetworks.use' permission for '{subnet}': {cure}")


def require_room(cloud: Cloud, subnet: str, hosts: int) -> None:
    """Refuse hosts for which the subnetwork at path `subnet` has no addresses left; 400."""
    # TPU VMs have addresses only once they boot, so the types of all stored nodes count.
    record = cloud.store.get(STORE, subnet) or {}
    room = networks.range_of(record).num_addresses - _RESERVED_ADDRESSES
    url = url_of(subnet)
    used = sum(
        catalog.accelerators()[node["acceleratorType"]].hosts
        for _, node in cloud.store.items(NODE)
        if url in node["_uses"]
    )
    used += sum("/instances/" in user for user in cloud.store.mentioning(STORE, "projects/", url))
    if used + hosts > room:
        message = (
            f"IP space of '{subnet}' is exhausted: {hosts} addresses are wanted, {room - used} of "
            f"{room} are free."
        )
        raise ApiError(400, message, reason="IP_SPACE_EXHAUSTED")


def service_account(cloud: Cloud, call: Call, sent: Json) -> Json:
    """Return the account and scopes of a TPU VM.

    Raises ApiError: 400 when the account does not exist, 403 when the caller may not act as it.
    """
    email = sent.get("email") or default_service_account(call.project)
    if problem := access.account_problem(cloud, email):
        raise wrong("service account", email, f": {problem}.")
    if not access.may_act_as(cloud, call, email):
        raise ApiError(
            403,
            f"The user does not have permission to act as service account '{email}': "
            f"'{call.principal.email}' lacks iam.serviceAccounts.actAs (role "
            "roles/iam.serviceAccountUser).",
        )
    scopes = sent.get("scope") or list(_SCOPES)
    for scope in scopes:
        if not is_scope(scope):
            raise wrong("scope", scope, f". Scopes are URLs such as {CLOUD_PLATFORM}.")
    return {"email": email, "scope": list(dict.fromkeys([*scopes, _SCOPES[-1]]))}


def by_id(cloud: Cloud, reference: str) -> str:
    """Return a reference with the project's id in place of its number, which the TPU API shows.

    So what a client has read can be sent again.
    """
    match = re.fullmatch(r"projects/(\d+)/(.+)", reference)
    if match is None:
        return reference
    return f"projects/{projects.identifier(cloud, match.group(1))}/{match.group(2)}"


def require_boot_disk(config: Json) -> None:
    """Refuse a boot disk that is smaller than the image."""
    size = config.get("diskSizeGb")
    if size is not None and int(size) < _SMALLEST_BOOT_GB:
        raise invalid(
            f"Invalid boot_disk_config.disk_size_gb {size}: the image has {_SMALLEST_BOOT_GB} GB."
        )


def scheduling(config: Json) -> Json:
    """Return a scheduling configuration whose tiers don't contradict each other.

    Each tier has a quota and a price of its own.
    """
    tiers = [tier for tier in ("preemptible", "spot", "reserved") if config.get(tier)]
    if len(tiers) > 1:
        raise invalid(f"Only one of {' and '.join(tiers)} may be set in scheduling_config.")
    return config


def accepted_range(
    cloud: Cloud, accelerator: catalog.Accelerator, network: str, wanted: str
) -> str:
    """Return the range that a new node gets.

    Args:
        accelerator: the node's type, which says how large the range must be.
        network: path of the network that it is peered with.
        wanted: in CIDR notation, or an address alone, or empty.

    Raises:
        ApiError: 400 for a range that is malformed, too small, not private, or taken.
    """
    taken = _taken_ranges(cloud, network)
    if not wanted:
        for candidate in _AUTOMATIC.subnets(new_prefix=accelerator.prefix):
            if not any(candidate.overlaps(other) for other, _ in taken):
                return str(candidate)
        raise ApiError(400, f"Network '{network}' has no free range for the node.")
    try:
        block = IPv4Network(wanted if "/" in wanted else f"{wanted}/{accelerator.prefix}")
    except ValueError as error:
        raise wrong("CIDR block", wanted, f": {error}.") from None
    if block.prefixlen > accelerator.prefix:
        needs = f"{accelerator.name} needs a range of at least /{accelerator.prefix}."
        raise wrong("CIDR block", wanted, f": {needs}")
    if not any(block.subnet_of(one) for one in networks.PRIVATE):
        private = ", ".join(map(str, networks.PRIVATE))
        raise wrong("CIDR block", wanted, f": it must be within {private}.")
    for other, holder in taken:
        if block.overlaps(other):
            raise wrong("CIDR block", wanted, f": it conflicts with {other} of {holder}.")
    return str(block)


# A classic node's block is routed into the network by a peering, so it must be free of subnetworks
# and of other nodes. The names go into the refusal.
def _taken_ranges(cloud: Cloud, network: str) -> list[tuple[IPv4Network, str]]:
    found = [
        (networks.range_of(subnet), f"subnetwork '{subnet['name']}'")
        for subnet in networks.subnets(cloud, network)
    ]
    found += [
        (IPv4Network(node["cidrBlock"]), f"TPU node '{node['name']}'")
        for _, node in cloud.store.items(NODE, f"projects/{project_of(network)}/")
        if node.get("cidrBlock") and node["_network"] == network
    ]
    return found


# Source of what follows on data disks: cloud.google.com/tpu/docs/attach-durable-block-storage.


def accepted_disks(
    cloud: Cloud,
    call: Call,
    zone: str,
    accelerator: catalog.Accelerator,
    sent: list[Json],
    *,
    slices: int = 1,
    node: str = "",
) -> list[Json]:
    """Return the data disks as a node has them.

    Args:
        call: names the project.
        zone: of the node.
        accelerator: the node's type.
        sent: the request's `dataDisks`.
        slices: how many nodes get them.
        node: full name of a node that has some of them already.

    Raises:
        ApiError: 404 for a disk that does not exist, 400 for one that the node cannot have.
    """
    if len(sent) > accelerator.disk_count:
        most = f"at most {accelerator.disk_count} data disks a host"
        raise invalid(f"{accelerator.name} takes {most}, got {len(sent)}.")
    sources, machines = [disk.get("sourceDisk", "") for disk in sent], accelerator.hosts * slices
    paths = [disks.require_disk(cloud, call.project, source) for source in sources]
    for path, disk in zip(paths, sent, strict=True):
        if f"/zones/{zone}/" not in path:
            raise invalid(f"Disk '{path}' is not in zone {zone}.")
        if paths.count(path) > 1:
            raise invalid(f"Disk '{path}' is given more than once.")
        kind = last(resources.load(cloud, path)["type"])
        if kind not in accelerator.disks:
            takes = ", ".join(accelerator.disks)
            raise invalid(f"Disk '{path}' is a {kind}; {accelerator.name} takes {takes}.")
        if disk.get("mode", _WRITE) == _WRITE and machines > 1:
            raise invalid(
                f"Disk '{path}' cannot be attached in READ_WRITE mode: there are {machines} TPU "
                "workers, and only one may write. Use READ_ONLY."
            )
        _require_free_disk(cloud, path, disk, machines, node)
    return [{"mode": _WRITE} | disk for disk in sent]


# One writer or any number of readers, counting the hosts of this request, other TPUs and instances.
def _require_free_disk(cloud: Cloud, path: str, disk: Json, machines: int, node: str) -> None:
    record = resources.load(cloud, path)
    others = [user for user in resources.holders(cloud, path) if user != node]
    if disk.get("mode", _WRITE) == _WRITE and others:
        raise resources.in_use(path, others[0])
    for other in others:
        if _writes(cloud, other, path):
            raise resources.in_use(path, other)
    mode, shared = record.get("accessMode", "READ_WRITE_SINGLE"), machines > 1 or bool(others)
    if shared and last(record["type"]) in _UNSHARED and mode != "READ_ONLY_MANY":
        raise invalid(
            f"Disk '{path}' can be attached to one machine only: its access mode is {mode}, not "
            "READ_ONLY_MANY."
        )


def _writes(cloud: Cloud, user: str, path: str) -> bool:
    """Return whether a node or an instance may write to a disk that it has."""
    node, instance = cloud.store.get(NODE, user), cloud.store.get(STORE, user) or {}
    # Both are in the disk's zone and project, where its name is its own.
    attached = node.get("dataDisks", []) if node else instance.get("disks", [])
    field = "sourceDisk" if node else "source"
    return any(
        disk.get("mode", _WRITE) == _WRITE for disk in attached if last(disk[field]) == last(path)
    )


# Stock, quota and the refusal of classic nodes follow settings: `stockout` {zone or `*`: [TPU types
# or `*`]}, `quota` {metric: limit in cores or chips per zone}, `deny-tpu-nodes` {"on": false} for a
# project on Google's list, `reservations` {zone: [TPU types]} (without it every request finds its
# reservation), `tpu-hosts` {"limit": n}: how many hosts may run.


def preemptible(record: Record) -> bool:
    """Return whether a node may be preempted.

    By any of three spellings: `preemptible`, `spot`, and the provisioning model of v2alpha1.
    """
    scheduling = record.get("schedulingConfig", {})
    spot = scheduling.get("spot") or scheduling.get("provisioningModel") == "SPOT"
    return bool(scheduling.get("preemptible") or spot)


def require_nodes_allowed(cloud: Cloud) -> None:
    """Refuse a classic node, as Google does since 2025-04-15 to projects not on its list."""
    if cloud.setting("deny-tpu-nodes").get("on", True):
        raise ApiError(
            400,
            "Your request to provision TPU Node has been denied. Please migrate to TPU VM "
            "Architecture or contact Cloud TPU team to gain TPU Node access.",
        )


def require_quota(cloud: Cloud, project: str, zone: str, wanted: list[Record]) -> None:
    """Refuse nodes that would exceed a quota; 429 naming the quota."""
    limits = cloud.setting("quota")
    needed: dict[str, int] = {}
    for record in wanted:
        metric, amount = _held(record)
        needed[metric] = needed.get(metric, 0) + amount
    for metric, amount in needed.items():
        limit = limits.get(metric)
        if limit is not None and _quota_used(cloud, project, zone, metric) + amount > limit:
            raise _quota_exceeded(metric, limit, project, zone)


def in_stock(cloud: Cloud, zone: str, accelerator: str) -> bool:
    """Return whether the zone has room for one more slice of this type.

    The setting is the only thing that takes room away, apart from the limit of hosts that this
    machine can run.
    """
    stockout = cloud.setting("stockout")
    out = [*stockout.get(zone, ()), *stockout.get("*", ())]
    return accelerator not in out and "*" not in out


def require_stock(cloud: Cloud, record: Record) -> None:
    """Refuse a slice that finds no room; 429 (code 8 in an operation) naming the zone."""
    zone = zone_of(record["name"])
    if not in_stock(cloud, zone, record["acceleratorType"]):
        raise stocked_out(zone)
    reserved = cloud.store.get(SETTING, "reservations")
    # Without the setting every request finds its reservation.
    held = None if reserved is None else reserved.get(zone, [])
    wants = record.get("schedulingConfig", {}).get("reserved")
    if wants and held is not None and record["acceleratorType"] not in held:
        why = "Contact customer support to increase your reservation."
        raise errors.failed_precondition(f"Insufficient reserved capacity. {why}")
    hosts = catalog.accelerators()[record["acceleratorType"]].hosts
    free = free_hosts(cloud, besides=record["name"])
    if hosts > free:
        own = f"the local cloud has room for {free} more TPU hosts (setting tpu-hosts)"
        raise ApiError(429, f"{stocked_out(zone).message} [{own}]")


def free_hosts(cloud: Cloud, *, besides: str = "") -> int:
    """Return how many more hosts the local cloud would run, not counting the node `besides`."""
    limit = int(cloud.setting("tpu-hosts").get("limit", _HOSTS))
    running = sum(
        catalog.accelerators()[other["acceleratorType"]].hosts
        for name, other in cloud.store.items(NODE)
        if name != besides and other["state"] in ("CREATING", "READY", "STARTING")
    )
    return limit - running


def stocked_out(zone: str) -> ApiError:
    """Return what Google answers when a zone has no room."""
    return ApiError(
        429,
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud '
        "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    )


def _quota_used(cloud: Cloud, project: str, zone: str, metric: str) -> int:
    prefix = f"projects/{project}/locations/{zone}/"
    # Every node counts until it is deleted, also a preempted or stopped one.
    held = [record for _, record in cloud.store.items(NODE, prefix)]
    for _, queued in cloud.store.items(QUEUED, prefix):
        # So does what a queued resource asks for, also after it failed or was suspended.
        standing = {record["name"] for record in held}
        held += [node for node in queued["_nodes"] if node["name"] not in standing]
    return sum(amount for counted, amount in map(_held, held) if counted == metric)


def _held(record: Record) -> tuple[str, int]:
    """Return the quota that a node counts against, and with how much.

    Flex-start draws on the quota of preemptible TPUs
    (docs.cloud.google.com/tpu/docs/request-using-flex-start).
    """
    accelerator = catalog.accelerators()[record["acceleratorType"]]
    takes_spot = preemptible(record) or bool(record.get("_flexStart"))
    return accelerator.metric(preemptible=takes_spot), accelerator.size


def _quota_exceeded(metric: str, limit: int, project: str, zone: str) -> ApiError:
    """Return what Google answers (in a user's notes of 2025-08-25)."""
    violation = {
        "subject": f"project:{projects.number(project)}",
        "description": f"Quota '{metric}' exhausted. Limit {limit} in zone {zone}",
    }
    failure = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
    message = f"Quota limit '{metric}' has been exceeded. Limit: {limit} in zone {zone}."
    return ApiError(429, message, details=[failure])
