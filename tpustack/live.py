"""What Google says of a stack before `pulumi up`, one finding or more for each question.

Nothing is created. A question that Google does not answer, or whose API is disabled, is a finding
of its own and ends no other: the first look at a new project finds most APIs off.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from tpu_core.compute import COMPUTE
from tpu_core.google import HIDDEN
from tpu_core.words import plural
from tpu_infra.apis import COMPUTE_API, TPU_API, apis_of
from tpu_infra.catalog.entries import Accelerator
from tpu_infra.checks import context, tpu as tpu_checks
from tpu_infra.deployer import makes_accounts, permissions_of
from tpu_infra.grants import On, elsewhere
from tpu_infra.names import project_of
from tpu_infra.settings import StackSettings, machines
from tpustack.cloud.google import (
    MANAGER,
    PEER,
    Forbidden,
    Google,
    Limit,
    NotFound,
    granted,
    limits_in,
    others_in,
    place_of,
    quota_metrics,
    roles_on,
    says_disabled,
    why_not_peered,
)
from tpustack.errors import TpustackError

BILLING = "https://cloudbilling.googleapis.com/v1"
_SERVICES = "https://serviceusage.googleapis.com/v1/projects/{}/services"
_TPU = "https://tpu.googleapis.com/{}/projects/{}/locations/{}/{}"
WRONG, UNKNOWN, WARNING, OK = "wrong", "unknown", "warning", "ok"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        about: what was asked about, such as `TPU quota`; filled in by `ask`.
        state: `ok`, `warning`, `wrong` (`pulumi up` would fail) or `unknown` (Google did not say).
        said: what was found.
        cure: what to do; empty if all is fine.
    """

    about: str
    state: str
    said: str
    cure: str = ""


# Each takes what was found and, but for the first, the cure.
_ok, _warning = partial(Finding, "", OK), partial(Finding, "", WARNING)
_wrong, _unknown = partial(Finding, "", WRONG), partial(Finding, "", UNKNOWN)


@dataclass(frozen=True)
class Target:
    """Google, and the stack that it is asked about. Each address is read once."""

    google: Google
    settings: StackSettings
    context: context.Context
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def project(self) -> str:
        """The project that the stack is in."""
        return self.settings.project

    def look(self, url: str) -> dict[str, Any]:
        """Return what is at `url`; several questions need it."""
        if url not in self._known:
            self._known[url] = self.google.get(url)
        return self._known[url]

    def record(self) -> dict[str, Any]:
        """Return Google's record of the project."""
        return self.look(MANAGER.format(self.project))

    def is_enabled(self, api: str) -> bool:
        """Return whether an API answers in the project."""
        return self.look(f"{_SERVICES.format(self.project)}/{api}").get("state") == "ENABLED"


Question = Callable[[Target], Iterator[Finding]]


def _disabled(api: str) -> Finding:
    return _warning(f"cannot be asked before {api} is enabled", "Ask again after that")


def _needs(api: str) -> Callable[[Question], Question]:
    """Ask a question only if an API answers in the project."""

    def decorate(question: Question) -> Question:
        def ask(target: Target) -> Iterator[Finding]:
            yield from question(target) if target.is_enabled(api) else [_disabled(api)]

        return ask

    return decorate


def _answers(about: str, target: Target) -> list[Finding]:
    """Return the findings of a question; if Google does not answer, one that says why."""
    found: list[Finding] = []
    try:
        found.extend(QUESTIONS[about](target))
    except Forbidden as error:
        # The error begins with the address that was asked.
        api = urlsplit(str(error).partition(" ")[0]).hostname
        if says_disabled(error) and api:
            cure = f"`gcloud services enable {api} --project {target.project}`"
            found.append(_warning(f"cannot be asked before {api} is enabled", cure))
        else:
            found.append(_unknown(str(error), "Ask someone with access to look"))
    except TpustackError as error:
        found.append(_unknown(str(error), "Try again"))
    return [replace(finding, about=about) for finding in found]


# The project: its existence, billing, APIs and permissions.


def project(target: Target) -> Iterator[Finding]:
    """Ask whether the project is there and active."""
    try:
        state = target.record().get("lifecycleState")
    except NotFound:
        state = None
    if state == "ACTIVE":
        yield _ok(f"{target.project} is active")
    else:
        said = f"is {state}" if state else "does not exist"
        yield _wrong(f"{target.project} {said}", "Set gcp:project to another one")


def billing(target: Target) -> Iterator[Finding]:
    """Ask whether the project has billing enabled."""
    info = target.google.get(f"{BILLING}/projects/{target.project}/billingInfo")
    if info.get("billingEnabled"):
        yield _ok(f"{info['billingAccountName']} pays")
    else:
        cure = f"`gcloud billing projects link {target.project} --billing-account ACCOUNT`"
        yield _wrong("billing is off: Google creates no machine in the project", cure)


def apis(target: Target) -> Iterator[Finding]:
    """Ask which of the stack's APIs are disabled."""
    query: dict[str, str | int] = {"filter": "state:ENABLED", "pageSize": 200}
    services = target.google.pages(_SERVICES.format(target.project), "services", query)
    enabled = {service["config"]["name"] for service in services}
    missing = [api for api in apis_of(target.settings) if api not in enabled]
    if not missing:
        yield _ok("all are enabled")
    elif target.settings.enable_apis:
        yield _ok(f"pulumi up enables {', '.join(missing)}")
    else:
        cure = f"`gcloud services enable {' '.join(missing)} --project {target.project}`"
        yield _wrong(f"disabled, and enableApis is false: {', '.join(missing)}", cure)


# How many permissions a finding names.
_SHOWN = 6


def permissions(target: Target) -> Iterator[Finding]:
    """Ask for exactly the permissions that `tpustack permissions` lists."""
    needed = permissions_of(target.settings)
    yield _held(target, MANAGER.format(target.project), needed.of_project(), "in the project")
    budget = target.settings.budget
    if budget is not None and budget.billing_account:
        url = f"{BILLING}/billingAccounts/{budget.billing_account}"
        yield _held(target, url, needed.of_billing_account(), "on the billing account")


def _held(target: Target, url: str, needed: list[str], where: str) -> Finding:
    missing = sorted(set(needed) - granted(target.google, url, needed))
    if not missing:
        return _ok(f"all {len(needed)} {where}")
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    names = ", ".join(missing[:_SHOWN]) + more
    return _wrong(
        f"{len(missing)} of {len(needed)} are missing {where}: {names}",
        f"Get the role that `tpustack permissions --stack {target.context.stack}` writes",
    )


# Names that the stack takes, and the networks that it does not make.

_OWN = "If this stack is up already, it is its own; else set namePrefix"
_GRANTED = "An administrator runs the commands that `tpustack check` lists"
_RENAME = "Set bucket.name or namePrefix to another name"


def bucket(target: Target) -> Iterator[Finding]:
    """Ask whether the bucket's name is free, or its bucket the project's."""
    name, creates = target.context.names.bucket, target.settings.bucket.create
    url = f"https://storage.googleapis.com/storage/v1/b/{quote(name)}"
    try:
        owner = target.google.get(url, {"fields": "projectNumber"}).get("projectNumber")
    except NotFound:
        cure = "Make it, or set bucket.name to another one"
        missing = _wrong(f"{name} does not exist, and bucket.create is false", cure)
        yield _ok(f"the name {name} is free") if creates else missing
        return
    except Forbidden:
        said = f"{name} is there, and you may not look at it"
        others = _wrong(f"{said}: it is probably not yours", _RENAME)
        yield others if creates else _ok(said)
        return
    if not creates:
        yield _ok(f"{name} is there")
    elif str(owner) != str(target.record().get("projectNumber")):
        yield _wrong(f"{name} is there, in another project", _RENAME)
    else:
        yield _warning(f"{name} is there already", _OWN)


def account(target: Target) -> Iterator[Finding]:
    """Ask whether the names of the service accounts are free, or the given ones there."""
    names, jobs = target.context.names, target.settings.jobs
    wanted = {names.email: target.settings.service_account}
    if jobs.apart:
        wanted[names.jobs_email] = jobs.service_account
    if jobs.vertex:
        wanted[names.vertex_email] = jobs.vertex.service_account
    if target.settings.has_watcher:
        wanted[names.watcher_email] = target.settings.recovery.service_account
    for email, given in wanted.items():
        place = f"projects/{project_of(email)}/serviceAccounts/{email}"
        try:
            found = target.google.get(f"https://iam.googleapis.com/v1/{place}")
        except NotFound:
            missing = _wrong(f"{email} does not exist", "Create it, or name another one")
            yield missing if given else _ok(f"{email} is free")
            continue
        if found.get("disabled"):
            cure = f"`gcloud iam service-accounts enable {email} --project {project_of(email)}`"
            yield _wrong(f"{email} is disabled: nothing can act as it", cure)
        else:
            yield _ok(f"{email} is there") if given else _warning(f"{email} is there already", _OWN)


def grants(target: Target) -> Iterator[Finding]:
    """Ask whether what the stack doesn't grant is granted, where the caller may see it.

    Nothing of it is wrong for certain: a role may come from a folder, or by a group.
    """
    wanted: dict[tuple[On, str], set[tuple[str, str, str]]] = {}
    for each in elsewhere(target.settings, target.context.names):
        only = each.condition.expression if each.condition else ""
        wanted.setdefault((each.on, each.target), set()).add((each.role, each.member, only))
    for (on, name), needed in wanted.items():
        try:
            missing = needed - roles_on(target.google, on, name)
        except NotFound:
            continue  # Another question says that it is not there.
        except Forbidden as error:
            if says_disabled(error):
                raise
            yield _warning(f"you may not see who has roles on {name}", _GRANTED)
            continue
        roles = ", ".join(sorted({role for role, *_ in missing}))
        many = f"{plural(len(needed), 'grant')} on {name}"
        yield _warning(f"{name} itself lacks grants of {roles}", _GRANTED) if missing else _ok(many)


def network(target: Target) -> Iterator[Finding]:
    """Ask whether a network that the stack does not make is there, with its subnetwork."""
    settings, region = target.settings.network, target.settings.region
    if settings.create:
        return
    if settings.project is None and not target.is_enabled(COMPUTE_API):
        yield _disabled(COMPUTE_API)
        return
    project, subnetwork = settings.project or target.project, settings.given_subnetwork
    places = {
        f"network {settings.given_name}": f"global/networks/{settings.given_name}",
        f"subnetwork {subnetwork} in {region}": f"regions/{region}/subnetworks/{subnetwork}",
    }
    for what, path in places.items():
        try:
            target.google.get(f"{COMPUTE}/projects/{project}/{path}", {"fields": "name"})
        except NotFound:
            cure = "Set network.create: true, or name another one"
            yield _wrong(f"{project} has no {what}, and network.create is false", cure)
            return
    yield _ok(f"{project} has {' and '.join(places)}")


def peering(target: Target) -> Iterator[Finding]:
    """Ask whether the network that jobs on Vertex AI are to reach is peered with it."""
    vertex = target.settings.jobs.vertex
    if vertex is None or vertex.network is None:
        return
    if why := why_not_peered(target.google, vertex.network):
        yield _wrong(f"jobs.vertex.network: {why}", PEER)
    else:
        yield _ok(f"{vertex.network} is peered with Google's services")


# What the zones have.


def accelerator_type(target: Target) -> Iterator[Finding]:
    """Ask whether each zone that the TPU may be in has its type."""
    if target.settings.is_compute:
        return  # machine_type asks.
    yield from _accelerator_type(target)


@_needs(TPU_API)
def _accelerator_type(target: Target) -> Iterator[Finding]:
    for zone in target.settings.tpu_zones:
        setting = f"tpu.acceleratorType or {target.settings.setting_of(zone)}"
        wanted = target.settings.tpu.accelerator_type
        yield _in_zone(target, zone, ("v2", "acceleratorTypes", "type"), wanted, setting)


def software(target: Target) -> Iterator[Finding]:
    """Ask whether the TPU's software is there: runtime, TensorFlow of a node, or image."""
    yield from (_image if target.settings.is_compute else _software)(target)


@_needs(COMPUTE_API)
def _image(target: Target) -> Iterator[Finding]:
    host = target.context.catalog.hosts[target.settings.tpu.accelerator_type]
    project, _, family = host.image.partition("/")
    url = f"{COMPUTE}/projects/{project}/global/images/family/{family}"
    try:
        yield _ok(f"{host.image} is {target.google.get(url, {'fields': 'name'})['name']}")
    except NotFound:
        yield _wrong(f"Google has no image {host.image}", "Use architecture vm until it has")


@_needs(TPU_API)
def _software(target: Target) -> Iterator[Finding]:
    tpu = target.settings.tpu
    if target.settings.architecture is machines.Architecture.NODE:
        where, wanted = ("v1", "tensorflowVersions", "version"), tpu.tensorflow_version or ""
        yield _in_zone(target, target.settings.zone, where, wanted, "tpu.tensorflowVersion")
        return
    for zone in target.settings.tpu_zones:
        where, wanted = ("v2", "runtimeVersions", "version"), tpu.runtime_version or ""
        yield _in_zone(target, zone, where, wanted, "tpu.runtimeVersion")


def _in_zone(
    target: Target, zone: str, where: tuple[str, str, str], wanted: str, setting: str
) -> Finding:
    """Look for a name in a list of the TPU API: its version, its collection and the names' field.

    A zone without TPUs, or one that Google hides from the project, offers nothing.
    """
    version, collection, name = where
    url = _TPU.format(version, target.project, zone, collection)
    try:
        known = [str(one[name]) for one in target.google.pages(url, collection, {"pageSize": 500})]
    except (NotFound, Forbidden) as error:
        if isinstance(error, Forbidden) and HIDDEN not in str(error):
            raise
        known = []
    if wanted in known:
        return _ok(f"{zone} has {wanted}")
    if known:
        cure = f"Change {setting}. {context.nearest(wanted, known)}"
        return _wrong(f"{zone} has no {wanted}", cure)
    cure = f"Change {target.settings.setting_of(zone)}"
    return _wrong(f"{zone} offers no TPUs", tpu_checks.switch_on(zone, target.project) or cure)


@_needs(COMPUTE_API)
def machine_type(target: Target) -> Iterator[Finding]:
    """Ask whether the zone has the machine type: the VM's, or that with the TPU."""
    settings, setting = target.settings, "vm.machineType"
    wanted, zone = settings.vm.machine_type, settings.vm_zone
    if settings.is_compute:
        setting, wanted, zone = "tpu.acceleratorType", settings.tpu.accelerator_type, settings.zone
    elif not settings.has_vm:
        return
    url = f"{COMPUTE}/projects/{target.project}/zones/{zone}/machineTypes/{wanted}"
    try:
        gib = int(target.google.get(url)["memoryMb"]) / 1024
    except NotFound:
        hidden = tpu_checks.switch_on(zone, target.project)
        cure = f"{hidden}, or set" if hidden else "Set"
        yield _wrong(f"{zone} has no {wanted}", f"{cure} {setting} to another one")
        return
    needed = target.settings.training.model_memory_gib
    if gib < needed:
        said = f"{wanted} has {gib:g} GiB, but training.modelMemoryGib is {needed:g}"
        yield _wrong(said, f"Set {setting} to a larger one")
    else:
        yield _ok(f"{zone} has {wanted} with {gib:g} GiB")


# Quotas.

_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={}"
# How metrics call a family: Google's page on quotas has tpu-v5s-litepod-serving-preemptible, users'
# scripts have tpu-v4s-preemptible (2026-08).
_FAMILY = {"v4": "v4s", "v5e": "v5s"}
# The word of a family's second quota. v2 and v3 have one for slices of several hosts, v5e for one
# host: v5litepod-1, -4 and -8 (cloud.google.com/tpu/docs/quota, a copy of 2025).
_SECOND = {"v2": "pod", "v3": "pod", "v5e": "serving"}


def tpu(target: Target) -> Iterator[Finding]:
    """Ask how much of this kind of TPU the project may use in each of its zones, and compare."""
    wanted, zones = target.settings.tpu, target.settings.tpu_zones
    if target.settings.is_compute:
        yield from _of_machines(target)
        return
    accelerator = target.context.catalog.accelerator(wanted.accelerator_type)
    if accelerator is None or not target.is_enabled(TPU_API):
        yield _disabled(TPU_API)
        return
    metrics = [
        metric
        for metric in quota_metrics(target.google, target.project, TPU_API)
        if counts(metric["metric"].partition("/")[2], accelerator, wanted.capacity)
    ]
    # As the number in a type's name counts: cores up to v5p, chips from v5e on.
    needed = _size(accelerator) * wanted.slices
    found = []
    for zone in zones:
        limits, standing = limits_in(metrics, place_of(zone)), _standing(target, accelerator, zone)
        found.append(_judged(limits, needed, standing, zone, target))
    # Without quota in one zone `pulumi up` tries the next one, as without capacity.
    nowhere = all(one.state == WRONG for one in found)
    for one in found:
        if one.state == WRONG and not nowhere:
            yield _warning(f"{one.said}: pulumi up tries another zone", one.cure)
        else:
            yield one


@_needs(COMPUTE_API)
def _of_machines(target: Target) -> Iterator[Finding]:
    """Compare the chips of machines with what the project may use of them in the region."""
    wanted, zone, kinds = target.settings.tpu, target.settings.zone, machines.Capacity
    host = target.context.catalog.hosts[wanted.accelerator_type]
    # docs.cloud.google.com/compute/docs/instances/provisioning-models: flex-start falls back to
    # the other. A reservation holds its own.
    short = wanted.capacity in (kinds.SPOT, kinds.FLEX_START)
    name = host.quotas.get("spot" if short else "standard", "").lower()
    if not name or wanted.capacity is kinds.RESERVED:
        cure = f"Look for {wanted.accelerator_type} at {_PAGE.format(target.project)}"
        yield _warning(f"the quota of {host.tpu.family}, {wanted.capacity}, is not compared", cure)
        return
    metrics = quota_metrics(target.google, target.project, COMPUTE_API, name)
    limits = limits_in(metrics, place_of(zone, tpu_family=host.quotas.get("family", "")))
    hosts = target.context.catalog.hosts.items()
    chips = {kind: each.tpu.chips for kind, each in hosts if each.tpu.family == host.tpu.family}
    others = others_in(target.google, target.project, target.settings.region, target.context.names)
    standing = sum(chips.get(kind, 0) for kind, spot in others if spot == short)
    one = _judged(limits, host.tpu_of(wanted.topology).chips, standing, zone, target)
    falls_back = one.state == WRONG and wanted.capacity is kinds.FLEX_START
    yield _warning(f"{one.said}: Google tries that of on-demand", one.cure) if falls_back else one


def _judged(
    limits: Mapping[str, Limit], needed: int, standing: int, zone: str, target: Target
) -> Finding:
    kind, capacity = target.settings.tpu.accelerator_type, target.settings.tpu.capacity
    page, setting = _PAGE.format(target.project), target.settings.setting_of(zone)
    cure = f"Ask for more at {page}, or change {setting}, type or tpu.capacity"
    if not limits:
        return _unknown(f"Google lists no quota for {kind}, {capacity}, in {zone}", cure)
    height = min(limits.values()).height
    said = ", ".join(f"{metric} is {limit}" for metric, limit in limits.items())
    if height == math.inf:
        return _ok(said)
    said += f", {needed} needed"
    if height < needed:
        return _wrong(said, cure)
    if height < needed + standing:
        said += f", and TPUs of this kind that stand there hold {standing}"
        return _warning(said, "Delete one that is not in use")
    return _ok(said)


def counts(name: str, accelerator: Accelerator, capacity: machines.Capacity) -> bool:
    """Return whether a metric of this name counts such TPUs."""
    words, family, kinds = {*name.split("-")}, accelerator.family, machines.Capacity
    if "tpu" not in words or words.isdisjoint((family, _FAMILY.get(family, family))):
        return False
    if (_SECOND.get(family) in words) != _takes_second(accelerator):
        return False
    # Flex-start takes preemptible quota (docs.cloud.google.com/tpu/docs/request-using-flex-start).
    preemptible = capacity in (kinds.SPOT, kinds.PREEMPTIBLE, kinds.FLEX_START)
    reserved = capacity is kinds.RESERVED
    return ("preemptible" in words, "reserved" in words) == (preemptible, reserved)


def _takes_second(accelerator: Accelerator) -> bool:
    family = accelerator.family
    return family in _SECOND and (accelerator.hosts == 1) == (family == "v5e")


def _size(accelerator: Accelerator) -> int:
    return int(accelerator.name.rpartition("-")[2])


def _standing(target: Target, accelerator: Accelerator, zone: str) -> int:
    """Return what TPUs hold of the quota in a zone: Google counts preempted ones too."""
    own = target.context.names.tpus(target.settings.tpu.slices)
    try:
        nodes = [*target.google.pages(_TPU.format("v2", target.project, zone, "nodes"), "nodes")]
    except NotFound:  # A zone without TPUs, which the question about the type names.
        return 0
    others = (
        target.context.catalog.accelerator(node.get("acceleratorType", ""))
        for node in nodes
        if node["name"].rpartition("/")[2] not in own
    )
    return sum(
        _size(other)
        for other in others
        if other and other.family == accelerator.family
        if _takes_second(other) == _takes_second(accelerator)
    )


@_needs(COMPUTE_API)
def vcpus(target: Target) -> Iterator[Finding]:
    """Ask whether the VM's vCPUs fit into the region's quota."""
    settings = target.settings
    machine = target.context.catalog.machine_types.get(settings.vm.machine_type)
    if machine is None or not settings.has_vm:
        return
    region = target.google.get(f"{COMPUTE}/projects/{target.project}/regions/{settings.region}")
    quotas = {quota["metric"]: quota for quota in region.get("quotas", ())}
    # The quota that counts comes first; n1 and e2 have the common one.
    own = f"{machine.name.partition('-')[0].upper()}_CPUS"
    names = ["CPUS"] if own in ("N1_CPUS", "E2_CPUS") else [own, "CPUS"]
    if settings.vm.capacity is not machines.VmCapacity.ON_DEMAND:
        names.insert(0, "PREEMPTIBLE_CPUS")
    metric = next((name for name in names if name in quotas), None)
    if metric is None:
        yield _unknown(f"Google lists no quota of {names[0]}", "")
        return
    limit, used = (float(quotas[metric][key]) for key in ("limit", "usage"))
    said = f"{metric} is {limit:g} in {settings.region}, {used:g} used, {machine.vcpus} needed"
    cure = f"Ask for more at {_PAGE.format(target.project)}, or use a smaller vm.machineType"
    if used + machine.vcpus <= limit:
        yield _ok(said)
    else:
        yield (_wrong if limit < machine.vcpus else _warning)(said, cure)


# Organization policies that would refuse what the stack creates.
_API = "orgpolicy.googleapis.com"
_POLICY = "https://orgpolicy.googleapis.com/v2/projects/{}/policies/{}:getEffectivePolicy"
Rule = Mapping[str, Any]


def _denies(rule: Rule, *values: str) -> bool:
    """Return whether a rule of a list lets none of the values through."""
    listed = rule.get("values", {})
    allowed, denied = (
        [value.removeprefix("is:") for value in listed.get(kind, ())]
        for kind in ("allowedValues", "deniedValues")
    )
    if rule.get("denyAll") or any(value in denied for value in values):
        return True
    return bool(allowed) and not any(value in allowed for value in values)


def _places(zone: str) -> tuple[str, ...]:
    """Return the names by which lists of locations may mean a zone."""
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    return (zone, region, *(f"in:{place}-locations" for place in (zone, region, continent)))


_UNTRIED = "compute.disableSerialPortLogging"
_ADMINISTRATOR = "Ask an administrator of the organization"
# Each with whether a rule of its policy refuses what the stack makes, and what helps: from
# https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints
CONSTRAINTS: tuple[tuple[str, Callable[[Rule, StackSettings], object], str], ...] = (
    (
        "compute.vmExternalIpAccess",
        lambda rule, s: (s.vm.public_ip or s.tpu.external_ips) and _denies(rule),
        "Set vm.publicIp and tpu.externalIps to false",
    ),
    (
        "compute.requireOsLogin",
        lambda rule, s: s.has_vm and not s.vm.os_login and rule.get("enforce"),
        "Set vm.osLogin: true",
    ),
    (
        "compute.trustedImageProjects",
        lambda rule, s: s.has_vm and _denies(rule, f"projects/{s.vm.image.partition('/')[0]}"),
        "Set vm.image to one of a project that is allowed",
    ),
    (
        "gcp.resourceLocations",
        lambda rule, s: any(_denies(rule, *_places(zone)) for zone in s.tpu_zones),
        "Set zone, and tpu.queued.fallbackZones, to places that are allowed",
    ),
    (
        "gcp.restrictServiceUsage",
        lambda rule, s: any(_denies(rule, api) for api in apis_of(s)),
        f"{_ADMINISTRATOR} to allow the APIs that the stack uses (docs/team.md#apis)",
    ),
    (
        "iam.disableServiceAccountCreation",
        lambda rule, s: makes_accounts(s) and rule.get("enforce"),
        "Name existing service accounts in the settings (docs/landing-zone.md)",
    ),
    # "'604800' violates constraint" (discuss.google.dev/t/175999): no default passes everywhere.
    (
        "storage.softDeletePolicySeconds",
        lambda rule, s: s.bucket.create and _denies(rule, str(s.bucket.kept_days * 86400)),
        "Set bucket.softDeleteDays to a duration that is allowed",
    ),
    # Cloud Composer, whose nodes ask for such logging as our VM does, can't be created under it
    # (docs.cloud.google.com/composer/docs/composer-1/known-issues). Not tried with a VM.
    (
        _UNTRIED,
        lambda rule, s: s.has_vm and s.vm.serial_port_logging and rule.get("enforce"),
        "Set vm.serialPortLogging: false",
    ),
)


def policies(target: Target) -> Iterator[Finding]:
    """Ask for the policies that would refuse something."""
    if not target.is_enabled(_API):
        if target.record().get("parent"):
            cure = f"`gcloud services enable {_API} --project {target.project}`"
            yield _unknown(f"{_API} is disabled", cure)
        else:
            yield _ok(f"{target.project} is in no organization")
        return
    refused = False
    for name, bites, cure in CONSTRAINTS:
        policy = target.google.get(_POLICY.format(target.project, name))
        if any(bites(rule, target.settings) for rule in policy.get("spec", {}).get("rules", [])):
            refused = True
            finding = _warning if name == _UNTRIED else _wrong
            yield finding(f"constraints/{name} refuses what the stack makes", cure)
    if not refused:
        yield _ok(f"none of {len(CONSTRAINTS)} that were asked for refuses anything")


QUESTIONS: dict[str, Question] = {
    "project": project,
    "billing": billing,
    "APIs": apis,
    "permissions": permissions,
    "TPU type": accelerator_type,
    "TPU software": software,
    "TPU quota": tpu,
    "machine type": machine_type,
    "vCPU quota": vcpus,
    "bucket": bucket,
    "service account": account,
    "grants": grants,
    "network": network,
    "peering": peering,
    "org policies": policies,
}
"""In the order of the table: what all others depend on comes first."""
# Google's quota of reads is one of each API, so a few at a time are polite and quick.
_AT_ONCE = 4
_CAPACITY = Finding(
    "capacity", UNKNOWN, "Google does not say before a TPU is requested", "tpu.queued waits for it"
)


def ask(target: Target) -> list[Finding]:
    """Return the findings in the questions' order."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = threads.map(lambda about: _answers(about, target), QUESTIONS)
        return [*(finding for each in found for finding in each), _CAPACITY]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if something is wrong, 3 if Google did not answer everything, else 0."""
    states = {finding.state for finding in findings if finding is not _CAPACITY}
    if WRONG in states:
        return 2
    return 3 if UNKNOWN in states else 0
