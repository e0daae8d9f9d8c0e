"""Rules as data, and how the engine gets them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from typing import Any

import pulumi_policy as engine

from infra.catalog import Catalog
from infra.catalog.entries import Price
from infra.cost import Estimate, Line, dollars
from policy.resource import (
    FLEX_START,
    ON_DEMAND,
    PREEMPTIBLE,
    RESERVED,
    SPOT,
    UNKNOWN,
    Disk,
    Machine,
    Property,
    Resource,
    data_disk,
    group,
    in_stack,
    items,
    machines,
    named,
    plain,
    region_of,
    shown,
)

Config = Mapping[str, Any]
ResourceCheck = Callable[[Resource, Config], Iterable[str]]
StackCheck = Callable[[Sequence[Resource], Config], Iterable[tuple[Resource, str]]]

STACK_TYPE = "pulumi:pulumi:Stack"
PRODUCTION = "productionStacks"
ALLOWED = "allowed"


@dataclass(frozen=True)
class Option:
    """A setting of a rule: its JSON type, its default, and what it means."""

    type: str
    default: Any
    description: str

    def schema(self) -> dict[str, Any]:
        """Return the option as JSON schema."""
        items = {"items": {"type": "string"}} if self.type == "array" else {}
        return {
            "type": self.type,
            **items,
            "default": self.default,
            "description": self.description,
        }


def production() -> Option:
    """Return the option that names production stacks."""
    return Option("array", ["prod", "prod-*"], "Names of production stacks; * is anything.")


def allowed(what: str) -> Option:
    """Return the option that names the exceptions to a rule."""
    return Option("array", [], f"Names of {what}; * is anything.")


@dataclass(frozen=True)
class Rule:
    """One rule, which looks at one resource or at the whole stack."""

    name: str
    description: str
    options: Mapping[str, Option] = field(default_factory=dict)
    level: engine.EnforcementLevel = engine.EnforcementLevel.MANDATORY

    def configured(self, config: Config | None = None) -> Config:
        """Return every option's value: the configured one, else its default."""
        return {name: option.default for name, option in self.options.items()} | dict(config or {})

    def misnamed(self, config: Config) -> list[str]:
        """Return messages about options that the rule lacks; the engine lets them pass."""
        return [
            f"{self.name}.{name}: {shown(value)} in the policy configuration is no option of this "
            f"rule. {_cure(name, list(self.options))}"
            for name, value in config.items()
            if name not in self.options
        ]

    def as_policy(self) -> engine.Policy:
        """Return the rule as the engine knows it."""
        raise NotImplementedError

    def schema(self) -> engine.PolicyConfigSchema | None:
        """Return the schema that the engine checks the rule's configuration with."""
        properties = {name: option.schema() for name, option in self.options.items()}
        return engine.PolicyConfigSchema(properties) if properties else None


@dataclass(frozen=True)
class ResourceRule(Rule):
    """Looks at one resource before it is made: `check` yields a message for each violation."""

    check: ResourceCheck = field(kw_only=True)

    def violations(self, resource: Resource, config: Config | None = None) -> list[str]:
        """Yield what is wrong with a resource."""
        return list(self.check(resource, self.configured(config)))

    def as_policy(self) -> engine.Policy:
        """Return the rule as the engine knows it."""

        def validate(args: engine.ResourceValidationArgs, report: engine.ReportViolation) -> None:
            resource = _resource(args)
            config = args.get_config()
            wrong = self.misnamed(config) if resource.type == STACK_TYPE else []
            for message in [*wrong, *self.violations(resource, config)]:
                report(message, None)

        return engine.ResourceValidationPolicy(
            self.name, self.description, validate, self.level, self.schema()
        )


@dataclass(frozen=True)
class StackRule(Rule):
    """Looks at all resources together, at the end of a preview or update."""

    check: StackCheck = field(kw_only=True)

    def violations(
        self, resources: Sequence[Resource], config: Config | None = None
    ) -> list[tuple[Resource, str]]:
        """Yield what is wrong with a stack, and the resource that it is about."""
        return list(self.check(resources, self.configured(config)))

    def as_policy(self) -> engine.Policy:
        """Return the rule as the engine knows it."""

        def validate(args: engine.StackValidationArgs, report: engine.ReportViolation) -> None:
            resources = [_resource(each) for each in args.resources]
            config = args.get_config()
            for message in self.misnamed(config):
                report(message, None)
            for resource, message in self.violations(resources, config):
                report(message, resource.urn)

        return engine.StackValidationPolicy(
            self.name, self.description, validate, self.level, self.schema()
        )


def _cure(name: str, options: Sequence[str]) -> str:
    if near := get_close_matches(name, options, 1):
        return f"Did you mean {near[0]}?"
    return f"There are: {', '.join(options)}."


def _resource(of: engine.PolicyResource | engine.ResourceValidationArgs) -> Resource:
    return Resource(of.resource_type, of.name, of.urn, plain(of.props), of.opts.protect)


# --- The rules of the pack, in sections; RULES at the end is what the engine gets.

_FULL = ("https://www.googleapis.com/auth/cloud-platform", "cloud-platform")
# The accounts that Google makes in each project, as a rule with the role Editor.
_DEFAULT = re.compile(
    r"\d+-compute@developer\.gserviceaccount\.com|.+@appspot\.gserviceaccount\.com"
)


def _full_scope(resource: Resource, config: Config) -> Iterator[str]:
    if resource.matches(config[ALLOWED]):
        return
    for machine in machines(resource):
        account = machine.account
        if account is None or not _has_full_scope(machine) or _is_dedicated(account.value):
            continue
        yield resource.wrong(
            account.path,
            account.value,
            "so a machine with the scope cloud-platform runs as Google's default account, which "
            "may do nearly everything in the project",
            "Name a service account of the stack's own with the roles that the job needs",
        )


def _has_full_scope(machine: Machine) -> bool:
    return machine.scopes is None or any(scope in _FULL for scope in machine.scopes)


def _is_dedicated(email: object) -> bool:
    """Return whether it is no default account; an unknown one belongs to the stack."""
    if email is UNKNOWN:
        return True
    return isinstance(email, str) and "@" in email and not _DEFAULT.fullmatch(email)


FULL_SCOPE = ResourceRule(
    "full-scope-with-own-account",
    "Machines with the scope cloud-platform have a service account of their own.",
    {ALLOWED: allowed("machines that may use the default account")},
    check=_full_scope,
)


# --- No bucket can be read or written by everyone.

_BUCKET = "gcp:storage/bucket:Bucket"
_EVERYONE = ("allUsers", "allAuthenticatedUsers")
_PUBLIC_ACLS = ("publicRead", "publicReadWrite", "authenticatedRead")
_PREVENTION, _UNIFORM = "publicAccessPrevention", "uniformBucketLevelAccess"
# Where grants on buckets and objects say to whom.
_MEMBERS = {
    "gcp:storage/bucketIAMMember:BucketIAMMember": ("member",),
    "gcp:storage/bucketIAMBinding:BucketIAMBinding": ("members",),
    "gcp:storage/bucketIAMPolicy:BucketIAMPolicy": ("policyData",),
    "gcp:storage/bucketAccessControl:BucketAccessControl": ("entity",),
    "gcp:storage/defaultObjectAccessControl:DefaultObjectAccessControl": ("entity",),
    "gcp:storage/objectAccessControl:ObjectAccessControl": ("entity",),
    "gcp:storage/bucketACL:BucketACL": ("predefinedAcl", "defaultAcl", "roleEntities"),
    "gcp:storage/defaultObjectACL:DefaultObjectACL": ("roleEntities",),
    "gcp:storage/objectACL:ObjectACL": ("predefinedAcl", "roleEntities"),
    "gcp:storage/bucketObject:BucketObject": ("predefinedAcl",),
}


def _no_public_buckets(resource: Resource, config: Config) -> Iterator[str]:
    props = resource.props
    if resource.matches(config[ALLOWED]) or named(props.get("bucket"), config[ALLOWED]):
        return
    if resource.type == _BUCKET:
        prevention, uniform = props.get(_PREVENTION), props.get(_UNIFORM)
        if prevention not in ("enforced", UNKNOWN):
            yield resource.wrong(
                _PREVENTION, prevention, "so a grant can make it public", "Set it to enforced"
            )
        if uniform not in (True, UNKNOWN):
            yield resource.wrong(
                _UNIFORM, uniform, "so each object can have grants of its own", "Set it to true"
            )
    for path in _MEMBERS.get(resource.type, ()):
        for member in _texts(Property(path, props.get(path))):
            name = member.value.rpartition(":")[2]
            if name in _EVERYONE or member.value in _PUBLIC_ACLS:
                yield resource.wrong(
                    member.path,
                    member.value,
                    "which is everyone on the internet",
                    "Name the accounts that need access, or add the bucket to "
                    "no-public-buckets.allowed",
                )


def _texts(of: Property) -> Iterator[Property]:
    """Yield the texts in a property: members, entities or access lists."""
    if of.path == "policyData":
        policy = json.loads(of.value) if isinstance(of.value, str) else {}
        for number, binding in enumerate(items(policy, "bindings")):
            members = Property(f"policyData.bindings[{number}].members", binding.get("members"))
            yield from _texts(members)
    elif isinstance(of.value, list):
        for number, value in enumerate(of.value):
            yield from _texts(Property(f"{of.path}[{number}]", value))
    elif isinstance(of.value, str):
        yield of


NO_PUBLIC_BUCKETS = ResourceRule(
    "no-public-buckets",
    "Buckets have uniform access, prevent public access, and are granted to known accounts only.",
    {ALLOWED: allowed("buckets that may be public")},
    check=_no_public_buckets,
)


# --- Grants of any kind go to accounts of the stack's own projects and of Google's services.

_GRANT = re.compile(r"gcp:\w+/\w+:\w*(IAM|Iam)(Member|Binding|Policy)")
_DOMAIN = "{}.iam.gserviceaccount.com"
# Accounts as which Google's own services act in a project, by its number.
_AGENT = re.compile(
    r"service-\d+@(gcp-sa-[a-z-]+|gs-project-accounts|cloud-tpu)\.iam\.gserviceaccount\.com"
)


def _known_members(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    projects = {each.props.get("project") for each in resources}
    # An account of project example.com:p has the domain p.example.com.iam.gserviceaccount.com.
    domains = {
        _DOMAIN.format(".".join(reversed(project.split(":"))))
        for project in projects
        if isinstance(project, str)
    }
    for resource in resources:
        if not _GRANT.fullmatch(resource.type):
            continue
        for path in ("member", "members", "policyData"):
            for member in _texts(Property(path, resource.props.get(path))):
                kind, _, name = member.value.partition(":")
                own = kind == "serviceAccount" and name.rpartition("@")[2] in domains
                if own or _AGENT.fullmatch(name) or named(member.value, config[ALLOWED]):
                    continue
                yield (
                    resource,
                    resource.wrong(
                        member.path,
                        member.value,
                        "which is no account of this stack's projects",
                        "Grant it by hand, or add the member to known-members.allowed",
                    ),
                )


KNOWN_MEMBERS = StackRule(
    "known-members",
    "Grants on anything go to accounts of the stack's projects and of Google's services.",
    {ALLOWED: allowed("members who may be granted something, such as group:ml@example.com")},
    check=_known_members,
)


# --- Machines that Google may take away: never in production, and elsewhere every TPU.

_REASON = "reasonLabel"
_FREE = "freeStacks"


def _reason() -> Option:
    return Option("string", "capacity-reason", "The label that says why an exception is right.")


def _no_spot(resource: Resource, config: Config) -> Iterator[str]:
    if not in_stack(resource, config[PRODUCTION]) or _is_justified(resource, config):
        return
    for machine in machines(resource):
        if machine.capacity_is in (SPOT, PREEMPTIBLE):
            yield resource.wrong(
                machine.capacity.path,
                machine.capacity.value,
                f"so Google may take the {machine.what} of production stack "
                f"{resource.stack} away at any moment",
                f"Set its capacity to on-demand or reserved, or say why in the label "
                f"{config[_REASON]}",
            )


def _spot(resource: Resource, config: Config) -> Iterator[str]:
    exempt = [*config[PRODUCTION], *config[_FREE]]
    if in_stack(resource, exempt) or _is_justified(resource, config):
        return
    for machine in machines(resource):
        if machine.what == "TPU" and machine.capacity_is == ON_DEMAND:
            yield resource.wrong(
                machine.capacity.path,
                machine.capacity.value,
                f"so the TPU of stack {resource.stack} is paid for in full, though training goes "
                "on from its checkpoint after a preemption",
                "Set its capacity to spot (of a classic node: preemptible), or say why in the "
                f"label {config[_REASON]}",
            )


def _is_justified(resource: Resource, config: Config) -> bool:
    labels = group(resource.props, "labels")
    return resource.props.get("labels") is UNKNOWN or bool(labels.get(config[_REASON]))


NO_SPOT_IN_PRODUCTION = ResourceRule(
    "no-spot-in-production",
    "Production has no spot or preemptible machine without a reason.",
    {PRODUCTION: production(), _REASON: _reason()},
    check=_no_spot,
)

SPOT_OUTSIDE_PRODUCTION = ResourceRule(
    "spot-outside-production",
    "Outside production, TPUs are spot, preemptible or reserved unless there is a reason.",
    {
        PRODUCTION: production(),
        _FREE: Option("array", ["local", "local-*"], "Names of stacks that cost nothing."),
        _REASON: _reason(),
    },
    engine.EnforcementLevel.ADVISORY,
    check=_spot,
)


# --- A ceiling for what a stack costs an hour: its TPUs, VMs and disks, at the catalog's prices.

_CEILING, _PRODUCTION_CEILING = "dollarsPerHour", "productionDollarsPerHour"


def _cost_ceiling(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    priced = [(resource, line) for resource in resources for line in _parts(resource)]
    if not priced:
        return
    key = _PRODUCTION_CEILING if in_stack(resources[0], config[PRODUCTION]) else _CEILING
    ceiling = Decimal(str(config[key]))
    for resource, line in priced:
        if line.configured is None:
            yield (
                resource,
                f"{resource.title}: the price of {line.part} {line.what} is in no source of the "
                f"catalog, so the stack may not stay below {dollars(ceiling)} an "
                "hour. Take another type or region, add the price to infra/catalog/prices.yaml, "
                "or disable cost-ceiling for this stack.",
            )
    estimate = Estimate("stack", "", Decimal(1), tuple(line for _, line in priced))
    if estimate.configured.hour > ceiling:
        # Report the most expensive part: that is the one to change.
        priced.sort(key=lambda pair: _amount(pair[1]), reverse=True)
        resource, _ = priced[0]
        parts = ", ".join(f"{line.part} {line.what} {dollars(_amount(line))}" for _, line in priced)
        yield (
            resource,
            f"{resource.title}: stack {resource.stack} costs {dollars(estimate.configured.hour)} "
            f"an hour ({parts}), more than its ceiling of {dollars(ceiling)}. Take smaller or spot "
            f"machines, or raise cost-ceiling.{key}.",
        )


def _parts(resource: Resource) -> Iterator[Line]:
    for machine in machines(resource):
        yield from _lines(machine)
    if disk := data_disk(resource):
        where = Property("zone", resource.props.get("zone"))
        yield _disk_line(disk, region_of(where) or "?")


def _lines(machine: Machine) -> Iterator[Line]:
    region = machine.region or "?"
    times = f"{machine.count} x " if machine.count > 1 else ""
    what = f"{times}{machine.size.value}, {machine.capacity_is}"
    hour = _tpu_price(machine, region) if machine.what == "TPU" else _vm_price(machine, region)
    yield Line.fixed(machine.what, what, hour and hour.times(machine.count))
    for disk in machine.disks:
        yield _disk_line(disk, region)


def _disk_line(disk: Disk, region: str) -> Line:
    price = _catalog().prices.disk(disk.kind, region)
    return Line.fixed("Disk", f"{disk.gib} GiB {disk.kind}", price and price.times(disk.gib))


def _tpu_price(machine: Machine, region: str) -> Price | None:
    catalog = _catalog()
    tpu = catalog.accelerator(machine.size.value)
    # What a reservation costs is in its contract; it is at most the list price. So it is for
    # flex-start, whose prices the catalog lacks: Google calls it cost-effective.
    unlisted = machine.capacity_is in (RESERVED, FLEX_START)
    capacity = ON_DEMAND if unlisted else machine.capacity_is
    return catalog.prices.tpu(tpu, region, capacity) if tpu else None


def _vm_price(machine: Machine, region: str) -> Price | None:
    catalog = _catalog()
    kind = catalog.machine_types.get(str(machine.size.value).rpartition("/")[2])
    spot = machine.capacity_is in (SPOT, PREEMPTIBLE)
    return catalog.prices.machine(kind, region, spot=spot) if kind else None


def _amount(line: Line) -> Decimal:
    return line.configured.amount if line.configured else Decimal(0)


@cache
def _catalog() -> Catalog:
    return Catalog()


COST_CEILING = StackRule(
    "cost-ceiling",
    "TPUs, VMs and their disks cost less than a ceiling.",
    {
        _CEILING: Option("number", 10, "US dollars an hour, outside production."),
        _PRODUCTION_CEILING: Option("number", 50, "US dollars an hour, in production."),
        PRODUCTION: production(),
    },
    check=_cost_ceiling,
)


# --- Labels name the owner of a resource, on the bill, too.

_REQUIRED = "required"
_LABELLED = ("gcp:storage/bucket:Bucket", "gcp:compute/disk:Disk")
# The provider has no field for its labels.
_WITHOUT = "gcp:tpu/v2QueuedResource:V2QueuedResource"


def _required_labels(resource: Resource, config: Config) -> Iterator[str]:
    is_machine = resource.type != _WITHOUT and any(True for _ in machines(resource))
    if resource.type not in _LABELLED and not is_machine:
        return
    if resource.props.get("labels") is UNKNOWN:
        return
    labels = group(resource.props, "labels")
    missing = [key for key in config[_REQUIRED] if not labels.get(key)]
    if missing:
        why = f"without {', '.join(missing)}, so its owner is unknown"
        cure = "Add it; the setting labels of the stack file is for every resource"
        yield resource.wrong("labels", dict(labels) or None, why, cure)


REQUIRED_LABELS = ResourceRule(
    "required-labels",
    "Buckets, disks, VMs and TPUs have the labels that say whose they are.",
    {_REQUIRED: Option("array", ["managed-by", "tpu-stack"], "Labels that must not be empty.")},
    check=_required_labels,
)


# --- No machine can be reached from the internet.


def _no_public_addresses(resource: Resource, config: Config) -> Iterator[str]:
    if resource.matches(config[ALLOWED]):
        return
    for machine in machines(resource):
        for address in machine.addresses:
            yield resource.wrong(
                address.path,
                address.value,
                "which gives it a public address",
                "Leave it out: SSH comes in through IAP, and Cloud NAT is the way out. Or add the "
                "machine to no-public-addresses.allowed",
            )


NO_PUBLIC_ADDRESSES = ResourceRule(
    "no-public-addresses",
    "VMs and TPUs have no public address.",
    {ALLOWED: allowed("machines that may have a public address")},
    check=_no_public_addresses,
)


# --- Resources that hold production data cannot be deleted by mistake.

_TYPES = "types"
_STATEFUL = [
    "gcp:compute/disk:Disk",
    "gcp:compute/regionDisk:RegionDisk",
    "gcp:kms/cryptoKey:CryptoKey",
    "gcp:storage/bucket:Bucket",
]


def _protected(resource: Resource, config: Config) -> Iterator[str]:
    if not in_stack(resource, config[PRODUCTION]) or resource.matches(config[ALLOWED]):
        return
    if resource.type in config[_TYPES] and not resource.protect:
        why = f"so a change or a destroy of production stack {resource.stack} can delete its data"
        cure = "Set protect: true (of the stack's bucket: bucket.protect)"
        yield resource.wrong("protect", False, why, cure)


PROTECT_IN_PRODUCTION = ResourceRule(
    "protect-in-production",
    "What holds data in production is protected.",
    {
        PRODUCTION: production(),
        _TYPES: Option("array", _STATEFUL, "Types of resources that hold data."),
        ALLOWED: allowed("resources that need no protection"),
    },
    check=_protected,
)


# --- Bucket, VM and TPU are in one region: traffic between regions is slow and costs money.


def _regions_agree(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    placed = [
        (resource, place)
        for resource in resources
        if not resource.matches(config[ALLOWED])
        for place in _places(resource)
        if region_of(place)
    ]
    if not placed:
        return
    # The others follow the TPU, which is the hardest to get elsewhere.
    first, where = next((pair for pair in placed if _is_tpu(pair[0])), placed[0])
    home = region_of(where)
    for resource, place in placed:
        if region_of(place) != home:
            yield (
                resource,
                resource.wrong(
                    place.path,
                    place.value,
                    f"but {first.title} is in {home}, and traffic between regions is slow and "
                    "costs money",
                    f"Put it into {home}, or add it to regions-agree.allowed",
                ),
            )


def _places(resource: Resource) -> list[Property]:
    if resource.type == _BUCKET:
        return [Property("location", resource.props.get("location"))]
    return [machine.where for machine in machines(resource)]


def _is_tpu(resource: Resource) -> bool:
    return any(machine.what == "TPU" for machine in machines(resource))


REGIONS_AGREE = StackRule(
    "regions-agree",
    "Bucket, VM and TPU are in one region.",
    {ALLOWED: allowed("buckets and machines that may be elsewhere")},
    check=_regions_agree,
)


# --- All rules of the pack.

RULES: tuple[Rule, ...] = (
    REGIONS_AGREE,
    NO_PUBLIC_BUCKETS,
    KNOWN_MEMBERS,
    NO_PUBLIC_ADDRESSES,
    FULL_SCOPE,
    NO_SPOT_IN_PRODUCTION,
    SPOT_OUTSIDE_PRODUCTION,
    PROTECT_IN_PRODUCTION,
    COST_CEILING,
    REQUIRED_LABELS,
)
