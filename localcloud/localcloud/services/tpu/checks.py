"""Checks a node before it is created."""

from __future__ import annotations

import re

from localcloud.core import access, accounts, projects
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.tokens import CLOUD_PLATFORM, Principal, is_scope
from localcloud.services.compute.api import STORE, path_from, url_of
from localcloud.services.compute.networks import ranges, require_network, require_subnetwork
from localcloud.services.compute.projects import default_service_account
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import NODE
from localcloud.services.tpu.locations import network_agent

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_TAG = _NAME
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}")
_MOST_LABELS = 64
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


def require_name(name: str, what: str) -> None:
    """Refuse a name that breaks the TPU API's rules; `what` is the parameter, such as `nodeId`."""
    if not _NAME.fullmatch(name):
        raise invalid(
            f'Cloud TPU received an invalid {what}, "{name}". It must match {_NAME.pattern}: '
            "lower-case letters, digits and hyphens, beginning with a letter, at most 63."
        )


def accelerator(zone: str, body: Json) -> catalog.Accelerator:
    """Return the TPU type that a new node asks for, by `acceleratorType` or `acceleratorConfig`.

    Raises:
        ApiError: 400 for both, or a type that the zone does not have.
    """
    here = catalog.in_zone(zone)
    config = body.get("acceleratorConfig")
    if config and body.get("acceleratorType"):
        raise invalid("Only one of accelerator_type and accelerator_config may be given.")
    wanted = body.get("acceleratorType") or _DEFAULT_TYPE
    for candidate in here:
        fits = (candidate.type, candidate.topology) == (
            (config or {}).get("type"),
            (config or {}).get("topology"),
        )
        if fits if config else candidate.name == wanted:
            return candidate
    asked = f"{config.get('type')} {config.get('topology')}" if config else wanted
    known = ", ".join(one.name for one in here)
    raise invalid(
        f'Cloud TPU received an invalid AcceleratorType, "{asked}" for zone "{zone}". Accepted '
        f"values are {known}."
    )


def require_common(body: Json) -> None:
    """Refuse a malformed description, labels or tags."""
    if len(body.get("description", "")) > _LONGEST_DESCRIPTION:
        raise invalid(f"The description must have at most {_LONGEST_DESCRIPTION} characters.")
    labels = body.get("labels", {})
    if len(labels) > _MOST_LABELS:
        raise invalid(f"At most {_MOST_LABELS} labels are allowed, got {len(labels)}.")
    for key, value in labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(
                f'Cloud TPU received an invalid label, "{key}": "{value}". Keys match '
                f"{_LABEL.pattern}, values {_LABEL_VALUE.pattern}."
            )
    for tag in body.get("tags", []):
        if not _TAG.fullmatch(tag):
            raise invalid(f'Cloud TPU received an invalid tag, "{tag}". Tags match {_TAG.pattern}.')


def require_runtime(version: str, accelerator: catalog.Accelerator) -> None:
    """Refuse a runtime version that does not exist or does not run on the type."""
    if version not in catalog.runtime_versions():
        raise invalid(
            f'Cloud TPU received an invalid RuntimeVersion, "{version}". Accepted values are '
            f"{', '.join(catalog.runtime_versions())}."
        )
    if not catalog.runs_on(version, accelerator):
        raise invalid(f'RuntimeVersion "{version}" does not support {accelerator.name}.')


def network(cloud: Cloud, call: Call, zone: str, config: Json) -> tuple[Json, str]:
    """Return the network configuration of a TPU VM, completed, and the network's path.

    Raises:
        ApiError: 404 when the network or subnetwork does not exist, 400 when they don't fit, 403
            when Cloud TPU may not use those of a Shared VPC.
    """
    project = call.project
    name, subnet_name = config.get("network", ""), config.get("subnetwork", "")
    path = "" if subnet_name and not name else require_network(cloud, project, by_id(cloud, name))
    subnet = require_subnetwork(cloud, project, zone, by_id(cloud, subnet_name), path)
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
        raise ApiError(
            403,
            f"Required 'compute.subnetworks.use' permission for '{subnet}': grant "
            f"roles/tpu.xpnAgent on {host} to {agent}.",
        )


def require_room(cloud: Cloud, subnet: str, hosts: int) -> None:
    """Refuse hosts for which a subnetwork has no addresses left.

    Args:
        cloud: the cloud.
        subnet: path of the subnetwork.
        hosts: how many addresses are wanted.

    Raises:
        ApiError: 400, as Google answers.
    """
    record = cloud.store.get(STORE, subnet) or {}
    room = ranges(record)[0].num_addresses - _RESERVED_ADDRESSES
    url = url_of(subnet)
    used = sum(
        catalog.accelerators()[node["acceleratorType"]].hosts
        for _, node in cloud.store.items(NODE)
        if url in node["_uses"]
    )
    used += sum("/instances/" in user for user in cloud.store.mentioning(STORE, "projects/", url))
    if used + hosts > room:
        raise ApiError(
            400,
            f"IP space of '{subnet}' is exhausted: {hosts} addresses are wanted, {room - used} of "
            f"{room} are free.",
            reason="IP_SPACE_EXHAUSTED",
        )


def service_account(cloud: Cloud, call: Call, sent: Json) -> Json:
    """Return the account and scopes of a TPU VM.

    Raises:
        ApiError: 400 when the account does not exist, 403 when the caller may not act as it.
    """
    email = sent.get("email") or default_service_account(call.project)
    problem = accounts.problem(cloud, email)
    if problem:
        raise invalid(f'Cloud TPU received an invalid service account, "{email}": {problem}.')
    if not accounts.may_act_as(cloud, call, email):
        raise ApiError(
            403,
            f"The user does not have permission to act as service account '{email}': "
            f"'{call.principal.email}' lacks iam.serviceAccounts.actAs (role "
            "roles/iam.serviceAccountUser).",
        )
    scopes = sent.get("scope") or list(_SCOPES)
    for scope in scopes:
        if not is_scope(scope):
            raise invalid(
                f'Cloud TPU received an invalid scope, "{scope}". Scopes are URLs such as '
                f"{CLOUD_PLATFORM}."
            )
    return {"email": email, "scope": list(dict.fromkeys([*scopes, _SCOPES[-1]]))}


def by_id(cloud: Cloud, reference: str) -> str:
    """Return a reference with the project's id in place of its number, which the TPU API shows."""
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
    """Return a scheduling configuration whose tiers don't contradict each other."""
    tiers = [tier for tier in ("preemptible", "spot", "reserved") if config.get(tier)]
    if len(tiers) > 1:
        raise invalid(f"Only one of {' and '.join(tiers)} may be set in scheduling_config.")
    return config
