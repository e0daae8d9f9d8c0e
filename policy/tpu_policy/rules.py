"""The rules of the pack: how the engine gets them, then each in a section of its own.

A rule is a function that yields what is wrong; `on_resource` and `on_stack` put it into RULES, with
its docstring as the description that the engine shows. The first kind sees one resource before it
is made, and can stop it; the second sees all resources together, at the end of a preview or update.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from typing import Any

import pulumi_policy as engine

from tpu_core.words import money
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Price
from tpu_infra.cost import Estimate, Line
from tpu_policy import resource as facts
from tpu_policy.resource import UNKNOWN, Machine, Property, Resource, machines

Config = Mapping[str, Any]
ResourceCheck = Callable[[Resource, Config], Iterable[str]]
StackCheck = Callable[[Sequence[Resource], Config], Iterable[tuple[Resource, str]]]

# What each stack has exactly once.
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
        shape = {"default": self.default, "description": self.description}
        items = {"items": {"type": "string"}} if self.type == "array" else {}
        return {"type": self.type, **items, **shape}


_PRODUCTION = Option("array", ["prod", "prod-*"], "Names of production stacks; * matches anything.")


def _allowed(what: str) -> dict[str, Option]:
    """Return the option that names the exceptions to a rule."""
    return {ALLOWED: Option("array", [], f"Names of {what}; * matches anything.")}


@dataclass(frozen=True)
class Rule:
    """One rule: `check` yields what is wrong.

    One of a resource sees it before it is made: a mandatory one that finds something keeps it from
    being made. In a preview it says so, without which a reviewer would approve what the update
    refuses. One of the whole stack sees all resources together, at the end of a preview or update.
    By then an update has made them: what must not exist for a minute is for the other kind.
    """

    name: str
    description: str
    options: Mapping[str, Option]
    level: engine.EnforcementLevel
    check: ResourceCheck | StackCheck
    of_stack: bool

    def violations(self, what: Any, config: Config | None = None) -> list[Any]:
        """Return what is wrong with a resource, or with which of a stack's and what."""
        defaults = {name: option.default for name, option in self.options.items()}
        return list(self.check(what, defaults | dict(config or {})))

    def misnamed(self, config: Config) -> list[str]:
        """Return messages about options that the rule lacks; the engine lets them pass."""
        return [
            f"{self.name}.{name}: {facts.shown(value)} in the policy configuration isn't an option "
            f"of this rule. {_cure(name, list(self.options))}"
            for name, value in config.items()
            if name not in self.options
        ]

    def schema(self) -> engine.PolicyConfigSchema | None:
        """Return the schema that the engine checks the rule's configuration with."""
        properties = {name: option.schema() for name, option in self.options.items()}
        return engine.PolicyConfigSchema(properties) if properties else None

    def as_policy(self) -> engine.Policy:
        """Return the rule as the engine knows it."""

        def of_resource(
            args: engine.ResourceValidationArgs, report: engine.ReportViolation
        ) -> None:
            resource, config = _resource(args), args.get_config()
            # Once is enough, and every stack has this resource.
            wrong = self.misnamed(config) if resource.type == STACK_TYPE else []
            for message in [*wrong, *self.violations(resource, config)]:
                report(message, None)

        def of_stack(args: engine.StackValidationArgs, report: engine.ReportViolation) -> None:
            resources, config = [_resource(each) for each in args.resources], args.get_config()
            for message in self.misnamed(config):
                report(message, None)
            for resource, message in self.violations(resources, config):
                report(message, resource.urn)

        about = self.name, self.description
        if self.of_stack:
            return engine.StackValidationPolicy(*about, of_stack, self.level, self.schema())
        return engine.ResourceValidationPolicy(*about, of_resource, self.level, self.schema())


RULES: list[Rule] = []
"""What the engine gets, in the order of the source."""


def on_resource(
    name: str,
    options: Mapping[str, Option],
    level: engine.EnforcementLevel = engine.EnforcementLevel.MANDATORY,
) -> Callable[[ResourceCheck], ResourceCheck]:
    """Make a rule of a function that looks at one resource."""

    def add(check: ResourceCheck) -> ResourceCheck:
        RULES.append(Rule(name, check.__doc__ or "", options, level, check, of_stack=False))
        return check

    return add


def on_stack(name: str, options: Mapping[str, Option]) -> Callable[[StackCheck], StackCheck]:
    """Make a rule of a function that looks at all resources."""

    def add(check: StackCheck) -> StackCheck:
        level = engine.EnforcementLevel.MANDATORY
        RULES.append(Rule(name, check.__doc__ or "", options, level, check, of_stack=True))
        return check

    return add


def _cure(name: str, options: Sequence[str]) -> str:
    if near := get_close_matches(name, options, 1):
        return f"Did you mean {near[0]}?"
    return f"The options are: {', '.join(options)}."


def _resource(of: engine.PolicyResource | engine.ResourceValidationArgs) -> Resource:
    return Resource(of.resource_type, of.name, of.urn, facts.plain(of.props), of.opts.protect)


# --- Places: traffic between regions is slow and costs money

_BUCKET = "gcp:storage/bucket:Bucket"


@on_stack("regions-agree", _allowed("buckets and machines that may be elsewhere"))
def _regions_agree(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    """Buckets and VMs are in the TPU's region."""
    placed = [
        (resource, place)
        for resource in resources
        if not resource.matches(config[ALLOWED])
        for place in _places(resource)
        if facts.region_of(place)
    ]
    if not placed:
        return
    # The others follow the TPU, which is the hardest to get elsewhere.
    first, where = next((pair for pair in placed if _is_tpu(pair[0])), placed[0])
    home = facts.region_of(where)
    why = f"but {first.title} is in {home}, and traffic between regions is slow and costs money"
    cure = f"Move it to {home}, or add it to regions-agree.allowed"
    for resource, place in placed:
        if facts.region_of(place) != home:
            yield resource, resource.wrong(place, why, cure)


def _places(resource: Resource) -> list[Property]:
    if resource.type == _BUCKET:
        return [Property("location", resource.props.get("location"))]
    return [machine.where for machine in machines(resource)]


def _is_tpu(resource: Resource) -> bool:
    return any(machine.what == "TPU" for machine in machines(resource))


# --- Buckets
#
# Uniform access and prevention are what a bucket itself has; a grant to everyone on a bucket that
# lacks them is a resource of its own, of one of ten types.

_EVERYONE = ("allUsers", "allAuthenticatedUsers")
_PUBLIC_ACLS = ("publicRead", "publicReadWrite", "authenticatedRead")
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


@on_resource("no-public-buckets", _allowed("buckets that may be public"))
def _no_public_buckets(resource: Resource, config: Config) -> Iterator[str]:
    """Buckets have uniform access, prevent public access and grant nothing to everyone."""
    props = resource.props
    if resource.matches(config[ALLOWED]) or facts.named(props.get("bucket"), config[ALLOWED]):
        return
    if resource.type == _BUCKET:
        # Prevention stops grants to everyone; uniform access leaves no access list to forget.
        prevention = resource.prop("publicAccessPrevention")
        if prevention.value not in ("enforced", UNKNOWN):
            yield resource.wrong(prevention, "so a grant can make it public", "Set it to enforced")
        uniform = resource.prop("uniformBucketLevelAccess")
        if uniform.value not in (True, UNKNOWN):
            why = "so each object could have its own grants"
            yield resource.wrong(uniform, why, "Set it to true")
    cure = "Name the accounts that need access, or add the bucket to no-public-buckets.allowed"
    for path in _MEMBERS.get(resource.type, ()):
        for member in _texts(resource.prop(path)):
            name = member.value.rpartition(":")[2]
            if name in _EVERYONE or member.value in _PUBLIC_ACLS:
                yield resource.wrong(member, "which is everyone on the internet", cure)


def _texts(of: Property) -> Iterator[Property]:
    """Yield the texts in a property: members, entities or access lists.

    What a preview cannot know yet is no text, and passes.
    """
    if of.path == "policyData":
        policy = json.loads(of.value) if isinstance(of.value, str) else {}
        for number, binding in enumerate(facts.items(policy, "bindings")):
            members = Property(f"policyData.bindings[{number}].members", binding.get("members"))
            yield from _texts(members)
    elif isinstance(of.value, list):
        for number, value in enumerate(of.value):
            yield from _texts(Property(f"{of.path}[{number}]", value))
    elif isinstance(of.value, str):
        yield of


# --- Grants and accounts
#
# A grant to an outsider is how a stack's data leaves without a trace on its own machines. Google's
# agents, as which its services act, are known by the form of their addresses.

_GRANT = re.compile(r"gcp:\w+/\w+:\w*(IAM|Iam)(Member|Binding|Policy)")
_DOMAIN = "{}.iam.gserviceaccount.com"
# Accounts as which Google's own services act in a project, by its number.
_AGENT = re.compile(
    r"service-\d+@(gcp-sa-[a-z-]+|gs-project-accounts|cloud-tpu)\.iam\.gserviceaccount\.com"
)
_FULL = ("https://www.googleapis.com/auth/cloud-platform", "cloud-platform")
# The accounts that Google makes in each project, as a rule with the role Editor.
_DEFAULT = re.compile(
    r"\d+-compute@developer\.gserviceaccount\.com|.+@appspot\.gserviceaccount\.com"
)


@on_stack("known-members", _allowed("members who may get grants, such as group:ml@example.com"))
def _known_members(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    """Grants go only to service accounts of the stack's projects and of Google's services."""
    projects = {each.props.get("project") for each in resources}
    # An account of project example.com:p has the domain p.example.com.iam.gserviceaccount.com.
    domains = {
        _DOMAIN.format(".".join(reversed(project.split(":"))))
        for project in projects
        if isinstance(project, str)
    }
    why = "which isn't a service account of this stack's projects"
    cure = "Grant it manually, or add the member to known-members.allowed"
    for resource in resources:
        if not _GRANT.fullmatch(resource.type):
            continue
        for path in ("member", "members", "policyData"):
            for member in _texts(resource.prop(path)):
                kind, _, name = member.value.partition(":")
                own = kind == "serviceAccount" and name.rpartition("@")[2] in domains
                allowed = facts.named(member.value, config[ALLOWED])
                if not (own or allowed or _AGENT.fullmatch(name)):
                    yield resource, resource.wrong(member, why, cure)


@on_resource("no-public-addresses", _allowed("machines that may have a public address"))
def _no_public_addresses(resource: Resource, config: Config) -> Iterator[str]:
    """VMs and TPUs have no public address."""
    if resource.matches(config[ALLOWED]):
        return
    cure = (
        "Remove it, because SSH works through IAP and outgoing traffic through Cloud NAT. Or add "
        "the machine to no-public-addresses.allowed"
    )
    for machine in machines(resource):
        for address in machine.addresses:
            yield resource.wrong(address, "which gives it a public address", cure)


@on_resource("full-scope-with-own-account", _allowed("machines that may use the default account"))
def _full_scope(resource: Resource, config: Config) -> Iterator[str]:
    """Machines with the scope cloud-platform run as a dedicated service account."""
    if resource.matches(config[ALLOWED]):
        return
    why = (
        "so a machine with the scope cloud-platform runs as Google's default service account, "
        "which may do nearly everything in the project"
    )
    cure = "Set a dedicated service account with only the roles that the job needs"
    for machine in machines(resource):
        # A machine without scopes has those that Google chooses, which are all.
        full = machine.scopes is None or any(scope in _FULL for scope in machine.scopes)
        if full and machine.account and not _is_dedicated(machine.account.value):
            yield resource.wrong(machine.account, why, cure)


def _is_dedicated(email: object) -> bool:
    """Return whether it is no default account; an unknown one belongs to the stack."""
    if email is UNKNOWN:
        return True
    return isinstance(email, str) and "@" in email and not _DEFAULT.fullmatch(email)


# --- Machines that Google may take away: never in production, and elsewhere every TPU
#
# A label is the way out of both, so that the reason is in the state and in every review.

_REASON, _FREE = "reasonLabel", "freeStacks"
_REASON_OPTION = Option(
    "string", "capacity-reason", "The label that gives the reason for an exception."
)
_FREE_OPTION = Option("array", ["local", "local-*"], "Names of stacks that cost nothing.")


@on_resource("no-spot-in-production", {PRODUCTION: _PRODUCTION, _REASON: _REASON_OPTION})
def _no_spot(resource: Resource, config: Config) -> Iterator[str]:
    """Production has no spot or preemptible machine, or a label gives the reason."""
    if not facts.in_stack(resource, config[PRODUCTION]) or _is_justified(resource, config):
        return
    cure = f"Set its capacity to on-demand or reserved, or add the label {config[_REASON]}"
    for machine in machines(resource):
        if machine.capacity_is in (facts.SPOT, facts.PREEMPTIBLE):
            where = f"the {machine.what} of production stack {resource.stack}"
            why = f"so Google can preempt {where} at any moment"
            yield resource.wrong(machine.capacity, why, cure)


@on_resource(
    "spot-outside-production",
    {PRODUCTION: _PRODUCTION, _FREE: _FREE_OPTION, _REASON: _REASON_OPTION},
    engine.EnforcementLevel.ADVISORY,
)
def _spot(resource: Resource, config: Config) -> Iterator[str]:
    """Outside production, TPUs are spot, preemptible or reserved, or a label gives the reason."""
    exempt = [*config[PRODUCTION], *config[_FREE]]
    if facts.in_stack(resource, exempt) or _is_justified(resource, config):
        return
    why = (
        f"so you pay the full price for the TPU of stack {resource.stack}, although training would "
        "resume from its checkpoint after a preemption"
    )
    cure = (
        "Set its capacity to spot (TPU Node: preemptible), or give the reason in the label "
        f"{config[_REASON]}"
    )
    for machine in machines(resource):
        if machine.what == "TPU" and machine.capacity_is == facts.ON_DEMAND:
            yield resource.wrong(machine.capacity, why, cure)


def _is_justified(resource: Resource, config: Config) -> bool:
    labels = facts.group(resource.props, "labels")
    return resource.props.get("labels") is UNKNOWN or bool(labels.get(config[_REASON]))


# --- Resources that hold production data cannot be deleted by mistake

_TYPES = "types"
_STATEFUL = ["gcp:compute/disk:Disk", "gcp:compute/regionDisk:RegionDisk"]
_STATEFUL += ["gcp:kms/cryptoKey:CryptoKey", _BUCKET]


@on_resource(
    "protect-in-production",
    {
        PRODUCTION: _PRODUCTION,
        _TYPES: Option("array", _STATEFUL, "Types of resources that hold data."),
        **_allowed("resources that need no protection"),
    },
)
def _protected(resource: Resource, config: Config) -> Iterator[str]:
    """Resources that hold production data are protected."""
    if not facts.in_stack(resource, config[PRODUCTION]) or resource.matches(config[ALLOWED]):
        return
    if resource.type in config[_TYPES] and not resource.protect:
        why = f"so an update or destroy of production stack {resource.stack} could delete its data"
        cure = "Set protect: true (for the stack's bucket: bucket.protect)"
        yield resource.wrong(Property("protect", False), why, cure)


# --- A ceiling for what a stack costs an hour: its TPUs, VMs and disks, at the catalog's prices
#
# What costs by use (storage, traffic, operations) is not in it: no declaration says how much. A
# price that the catalog lacks is a violation of its own: a ceiling must not let the TPU pass whose
# price is unknown.

_CEILING, _PRODUCTION_CEILING = "dollarsPerHour", "productionDollarsPerHour"


@on_stack(
    "cost-ceiling",
    {
        _CEILING: Option("number", 10, "US dollars an hour, outside production."),
        _PRODUCTION_CEILING: Option("number", 50, "US dollars an hour, in production."),
        PRODUCTION: _PRODUCTION,
    },
)
def _cost_ceiling(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    """TPUs, VMs and their disks cost less than a ceiling."""
    priced = [(resource, line) for resource in resources for line in _lines(resource, resources)]
    if not priced:
        return
    production = facts.in_stack(resources[0], config[PRODUCTION])
    key = _PRODUCTION_CEILING if production else _CEILING
    ceiling = Decimal(str(config[key]))
    for resource, line in priced:
        if line.configured is None:
            yield (
                resource,
                f"{resource.title}: the catalog has no price for {line.part} {line.what}, so the "
                f"stack could cost more than {money(ceiling)} an hour. Choose another type or "
                "region, add the price to infra/tpu_infra/catalog/prices.yaml, or disable "
                "cost-ceiling for this stack.",
            )
    hour = Estimate("stack", "", Decimal(1), tuple(line for _, line in priced)).configured.hour
    if hour > ceiling:
        # Report the most expensive part: that is the one to change.
        priced.sort(key=lambda pair: _amount(pair[1]), reverse=True)
        resource, _ = priced[0]
        parts = ", ".join(f"{line.part} {line.what} {money(_amount(line))}" for _, line in priced)
        yield (
            resource,
            f"{resource.title}: stack {resource.stack} costs {money(hour)} an hour ({parts}), "
            f"more than its ceiling of {money(ceiling)}. Choose smaller or spot machines, or "
            f"raise cost-ceiling.{key}.",
        )


def _lines(resource: Resource, resources: Sequence[Resource]) -> Iterator[Line]:
    for machine in machines(resource):
        if resource.type in facts.TEMPLATES:
            count, where = facts.made_by_groups(resource, resources)
            machine = replace(machine, count=count, where=where)
        region = machine.region or "?"
        times = f"{machine.count} x " if machine.count > 1 else ""
        what = f"{times}{machine.size.value}, {machine.capacity_is}"
        hour = _tpu_price(machine, region) if machine.what == "TPU" else _vm_price(machine, region)
        yield Line.fixed(machine.what, what, hour and hour.times(machine.count))
        for own in machine.disks:
            yield from [_disk_line(own, region)] * machine.count
    if disk := facts.data_disk(resource):
        yield _disk_line(disk, facts.region_of(resource.prop("zone")) or "?")


def _disk_line(disk: facts.Disk, region: str) -> Line:
    price = _catalog().prices.disk(disk.kind, region)
    return Line.fixed("Disk", f"{disk.gib} GiB {disk.kind}", price and price.times(disk.gib))


def _tpu_price(machine: Machine, region: str) -> Price | None:
    tpu = _catalog().accelerator(str(machine.size.value).rpartition("/")[2])
    if tpu is None:
        return None
    # What a reservation costs is in its contract, and the catalog has few prices of flex-start:
    # both cost at most the list price.
    below = machine.capacity_is in (facts.RESERVED, facts.FLEX_START)
    ways = (machine.capacity_is, *([facts.ON_DEMAND] if below else []))
    return next(filter(None, (_catalog().prices.tpu(tpu, region, way) for way in ways)), None)


def _vm_price(machine: Machine, region: str) -> Price | None:
    kind = _catalog().machine_types.get(str(machine.size.value).rpartition("/")[2])
    spot = machine.capacity_is in (facts.SPOT, facts.PREEMPTIBLE)
    return _catalog().prices.machine(kind, region, spot=spot) if kind else None


def _amount(line: Line) -> Decimal:
    return line.configured.amount if line.configured else Decimal(0)


@cache
def _catalog() -> Catalog:
    return Catalog()


# --- Labels name the owner of a resource, on the bill, too
#
# Buckets and disks cost money while no machine of theirs is there, so they count as machines do.

_REQUIRED = "required"
_LABELLED = (_BUCKET, "gcp:compute/disk:Disk")
# The provider has no field for its labels.
_WITHOUT = "gcp:tpu/v2QueuedResource:V2QueuedResource"


@on_resource(
    "required-labels",
    {_REQUIRED: Option("array", ["managed-by", "tpu-stack"], "Labels that must not be empty.")},
)
def _required_labels(resource: Resource, config: Config) -> Iterator[str]:
    """Buckets, disks, VMs and TPUs have the labels that identify their owner."""
    is_machine = resource.type != _WITHOUT and any(True for _ in machines(resource))
    if resource.type not in _LABELLED and not is_machine:
        return
    if resource.props.get("labels") is UNKNOWN:
        return
    labels = facts.group(resource.props, "labels")
    if missing := [key for key in config[_REQUIRED] if not labels.get(key)]:
        why = f"without {', '.join(missing)}, so its owner is unknown"
        cure = "Add it; the setting labels in the stack file applies to every resource"
        yield resource.wrong(Property("labels", dict(labels) or None), why, cure)
