"""A resource as plain data, whichever way the engine hands it over.

The engine gives a pack the inputs of each resource, as the program declared them. A machine can be
declared by several types, each with the same fact under another name: what the rules ask is a
`Machine`, so that no rule knows Pulumi's types.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from pulumi_policy.proxy import UnknownValueError


class _Unknown:
    """A value that a preview cannot know: Google decides it.

    It is neither right nor wrong. A rule lets it pass, and the update asks the rule again with the
    value itself.
    """

    def __repr__(self) -> str:
        return "(known after the update)"


UNKNOWN: Final = _Unknown()


@dataclass(frozen=True)
class Property:
    """A property by its path, and its value.

    The path is as a program writes it, such as `networkInterfaces[0].accessConfigs`.
    """

    path: str
    value: Any


@dataclass(frozen=True)
class Resource:
    """One resource of a stack.

    Attributes:
        type: Pulumi's type token, for example `gcp:storage/bucket:Bucket`.
        name: its name in the program.
        urn: its URN, which names the stack.
        props: its properties; `UNKNOWN` stands for what a preview cannot know.
        protect: whether Pulumi refuses to delete it.
    """

    type: str
    name: str
    urn: str
    props: Mapping[str, Any] = field(default_factory=dict)
    protect: bool = False

    @property
    def stack(self) -> str:
        """The stack's name (`urn:pulumi:STACK::PROJECT::…`)."""
        return self.urn.split("::")[0].removeprefix("urn:pulumi:")

    @property
    def title(self) -> str:
        """Kind and name, as messages say it; the cloud's own name where there is one."""
        own = self.props.get("name")
        kind = self.type.rpartition(":")[2]
        return f"{kind} {own}" if isinstance(own, str) else f"{kind} {self.name}"

    def matches(self, patterns: Sequence[str]) -> bool:
        """Return whether one of the patterns (`*` stands for anything) names the resource.

        Both its names count: people know a machine by Google's, and reviewers by the program's.
        """
        return named(self.name, patterns) or named(self.props.get("name"), patterns)

    def prop(self, name: str) -> Property:
        """Return a property of the first level; its value is None if it is absent."""
        return Property(name, self.props.get(name))

    def wrong(self, of: Property, why: str, cure: str) -> str:
        """Return the message about one property."""
        return f"{self.title}: {of.path} is {shown(of.value)}, {why}. {cure}."


def in_stack(resource: Resource, patterns: Sequence[str]) -> bool:
    """Return whether the patterns name the resource's stack."""
    return named(resource.stack, patterns)


def named(name: object, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns (`*` stands for anything) matches a known name."""
    return isinstance(name, str) and any(fnmatchcase(name, pattern) for pattern in patterns)


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    if value is None:
        return "not set"
    return json.dumps(value, ensure_ascii=False, default=repr)


def plain(value: Any) -> Any:
    """Return the engine's properties without its proxies, which raise at unknown values.

    A proxy raises only when an unknown value is read, which would end the whole rule for one
    property that it does not need. What the engine adds for itself (`__defaults`) is left out.
    """
    if isinstance(value, Mapping):
        return dict(_items(value, (key for key in value if not key.startswith("__"))))
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [item for _, item in _items(value, range(len(value)))]
    return value


def _items(values: Any, keys: Any) -> Iterator[tuple[Any, Any]]:
    for key in keys:
        try:
            yield key, plain(values[key])
        except UnknownValueError:
            yield key, UNKNOWN


def group(props: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a property that is a group of others; empty if it is absent or unknown."""
    value = props.get(name)
    return value if isinstance(value, Mapping) else {}


def items(props: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return a property that is a list; empty if it is absent or unknown."""
    value = props.get(name)
    return value if isinstance(value, list) else []


# --- VMs and TPUs, whichever type of resource declares them
#
# The names are those of the provider's schema (pulumi-gcp) and, for the queue, of the TPU API:
# https://docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources

_INSTANCES = ("gcp:compute/instance:Instance",)
TEMPLATES: Final = (
    "gcp:compute/instanceTemplate:InstanceTemplate",
    "gcp:compute/regionInstanceTemplate:RegionInstanceTemplate",
)
_GROUPS = ("gcp:compute/instanceGroupManager:InstanceGroupManager",)
_DISK = "gcp:compute/disk:Disk"
_TPU_VM = "gcp:tpu/v2Vm:V2Vm"
_NODE = "gcp:tpu/node:Node"
_QUEUED = "gcp:tpu/v2QueuedResource:V2QueuedResource"
# What tpu_infra declares, as a stack and as a component: the same, with account and capacity.
_QUEUE_ENTRIES = ("pulumi-python:dynamic/tpu:QueuedResource", "tpu-stack:tpu:QueuedResource")

ON_DEMAND, SPOT, PREEMPTIBLE, RESERVED = "on-demand", "spot", "preemptible", "reserved"
FLEX_START = "flex-start"
# How Compute Engine calls its machines with a TPU: ct6e-standard-4t, tpu7x-standard-4t.
_HOST = re.compile(r"(ct|tpu)\d")
_MODELS = {"SPOT": SPOT, "RESERVATION_BOUND": RESERVED, "FLEX_START": FLEX_START}


@dataclass(frozen=True)
class Disk:
    """A disk of a kind (`pd-balanced`) and size."""

    kind: str
    gib: int


@dataclass(frozen=True)
class Machine:
    """A VM or TPU.

    Attributes:
        what: VM or TPU.
        size: the machine type or the accelerator type.
        where: the zone; of an instance template, the region.
        capacity: the property that says how it is bought, for messages.
        capacity_is: how it is bought, in the words of the stack's settings.
        account: None where it has none, or one of Google's.
        scopes: None where Google chooses.
        addresses: the properties that give it public addresses.
        disks: those that are made with it, if their size is known.
        count: how many alike there are: a request in the queue may be for several.
    """

    what: str
    size: Property
    where: Property
    capacity: Property
    capacity_is: str
    account: Property | None
    scopes: Sequence[Any] | None
    addresses: tuple[Property, ...]
    disks: tuple[Disk, ...] = ()
    count: int = 1

    @property
    def region(self) -> str | None:
        """The region, if it is known."""
        return region_of(self.where)


def made_by_groups(template: Resource, resources: Sequence[Resource]) -> tuple[int, Property]:
    """Return how many machines groups make from a template, at least one, and where they are.

    A preview does not know the template of a group before it is made: any counts.
    """
    count, where = 0, template.prop("region")
    for one in resources:
        if one.type not in _GROUPS:
            continue
        versions = items(one.props, "versions")
        links = [version.get("instanceTemplate") for version in versions] or [UNKNOWN]
        names = [str(link).partition("?")[0].rpartition("/")[2] for link in links]
        if UNKNOWN in links or template.props.get("name") in names:
            size = one.props.get("targetSize")
            count += int(size) if isinstance(size, (int, float)) else 1
            where = one.prop("zone") if one.props.get("zone") else where
    return max(count, 1), where


def region_of(where: Property) -> str | None:
    """Return the region that a property `zone`, `region` or `location` names, if it is known."""
    if not isinstance(where.value, str):
        return None
    name = where.value.rpartition("/")[2].lower()
    return name.rpartition("-")[0] if where.path.endswith("zone") else name


def machines(resource: Resource) -> Iterator[Machine]:
    """Return the machines that a resource is; none for other resources."""
    props = resource.props
    if resource.type in _INSTANCES:
        boot = group(group(props, "bootDisk"), "initializeParams")
        yield _vm(props, Property("zone", props.get("zone")), [_disk(boot, "type", "size")])
    elif resource.type in TEMPLATES:
        disks = [_disk(disk, "diskType", "diskSizeGb") for disk in items(props, "disks")]
        yield _vm(props, Property("region", props.get("region")), disks)
    elif resource.type == _TPU_VM:
        yield _tpu_vm(props, props, "", "scopes", *_asked("schedulingConfig", props))
    elif resource.type == _NODE:
        yield Machine(
            "TPU",
            Property("acceleratorType", props.get("acceleratorType")),
            Property("zone", props.get("zone")),
            *_asked("schedulingConfig", props),
            account=None,
            scopes=None,
            addresses=(),
        )
    elif resource.type in (_QUEUED, *_QUEUE_ENTRIES):
        yield from _queued(props, mine=resource.type in _QUEUE_ENTRIES)


# V2QueuedResource and this project's own resource hold the same request of the API, one as the
# provider flattens it, the other as it is.
def _queued(props: Mapping[str, Any], *, mine: bool) -> Iterator[Machine]:
    request, prefix = (group(props, "request"), "request.") if mine else (props, "")
    capacity = _tier(request, prefix)
    key = "nodeSpec" if mine else "nodeSpecs"
    for number, spec in enumerate(items(group(request, "tpu"), key)):
        path = f"{prefix}tpu.{key}[{number}].node."
        one = _tpu_vm(group(spec, "node"), props, path, "scope", *capacity)
        count = group(spec, "multiNodeParams").get("nodeCount")
        yield replace(one, count=int(count)) if isinstance(count, (int, float)) else one


def _tier(request: Mapping[str, Any], prefix: str) -> tuple[Property, str]:
    """Return how a request is bought: by its model, else by the tier of the queue that it is in."""
    model = request.get("provisioningModel")
    if isinstance(model, str) and model in _MODELS:
        return Property(f"{prefix}provisioningModel", model), _MODELS[model]
    reserved = group(request, "guaranteed").get("reserved") is True
    tiers = {"spot": SPOT, "bestEffort": PREEMPTIBLE}
    # A guarantee alone is only about how long a TPU stays.
    tiers |= {"guaranteed": RESERVED if reserved else ON_DEMAND}
    for key, capacity in tiers.items():
        if key in request:
            return Property(f"{prefix}{key}", request[key]), capacity
    return Property(f"{prefix}spot", None), ON_DEMAND


def _asked(name: str, props: Mapping[str, Any]) -> tuple[Property, str]:
    """Return how the machine is bought, by the flags in a scheduling group.

    A spot VM has the model and, as Google requires, the flag `preemptible`, too: the model counts.
    """
    scheduling = group(props, name)
    if (model := scheduling.get("provisioningModel")) in _MODELS:
        return Property(f"{name}.provisioningModel", model), _MODELS[model]
    for kind in (SPOT, PREEMPTIBLE, RESERVED):
        if scheduling.get(kind) is True:
            return Property(f"{name}.{kind}", True), kind
    if (affinity := group(props, "reservationAffinity").get("type")) == "SPECIFIC_RESERVATION":
        return Property("reservationAffinity.type", affinity), RESERVED
    return Property(name, props.get(name)), ON_DEMAND


def _vm(props: Mapping[str, Any], where: Property, disks: Sequence[Disk | None]) -> Machine:
    account = _account(props, "")
    addresses = tuple(
        Property(f"networkInterfaces[{number}].{key}", interface[key])
        for number, interface in enumerate(items(props, "networkInterfaces"))
        for key in ("accessConfigs", "ipv6AccessConfigs")
        if interface.get(key)
    )
    kind = str(props.get("machineType")).rpartition("/")[2]
    return Machine(
        "TPU" if _HOST.match(kind) else "VM",
        Property("machineType", props.get("machineType")),
        where,
        *_asked("scheduling", props),
        # A VM without an account has no identity at all.
        account=account if "serviceAccount" in props else None,
        scopes=items(group(props, "serviceAccount"), "scopes"),
        addresses=addresses,
        disks=tuple(disk for disk in disks if disk),
    )


def _tpu_vm(
    node: Mapping[str, Any],
    props: Mapping[str, Any],
    path: str,
    scopes: str,
    capacity: Property,
    capacity_is: str,
) -> Machine:
    networks = {"networkConfig": group(node, "networkConfig")} | {
        f"networkConfigs[{number}]": network
        for number, network in enumerate(items(node, "networkConfigs"))
    }
    return Machine(
        "TPU",
        Property(f"{path}acceleratorType", node.get("acceleratorType")),
        Property("zone", props.get("zone")),
        capacity,
        capacity_is,
        account=_account(node, path),
        # Without scopes, Google gives a TPU VM the full one.
        scopes=items(group(node, "serviceAccount"), scopes) or None,
        addresses=tuple(
            Property(f"{path}{key}.enableExternalIps", True)
            for key, network in networks.items()
            if network.get("enableExternalIps") is True
        ),
    )


def _account(props: Mapping[str, Any], path: str) -> Property:
    """Return the account; it is unknown if its group is, as in the preview of a first update."""
    whole = props.get("serviceAccount")
    email = whole if whole is UNKNOWN else group(props, "serviceAccount").get("email")
    return Property(f"{path}serviceAccount.email", email)


def data_disk(resource: Resource) -> Disk | None:
    """Return the disk that a resource is; None for other resources."""
    return _disk(resource.props, "type", "size") if resource.type == _DISK else None


def _disk(props: Mapping[str, Any], kind: str, size: str) -> Disk | None:
    """Return a disk of known size; None if an image decides it or it is not known yet."""
    gib, name = props.get(size), props.get(kind)
    if not isinstance(gib, (int, float)):
        return None
    # The kind that Google takes if none is named.
    return Disk(name.rpartition("/")[2] if isinstance(name, str) else "pd-standard", int(gib))
