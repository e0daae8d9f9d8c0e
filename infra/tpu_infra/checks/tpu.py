"""Checks of the TPU: type, zone, form, queue, recovery, and what is unverified."""

import re
from collections.abc import Iterable, Iterator

from tpu_infra import catalog
from tpu_infra.catalog.entries import Accelerator, Proof, Runtime
from tpu_infra.checks.context import Context, nearest, one_of, unverified, without_tpus
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem, misplaced
from tpu_infra.settings.machines import FULL_SCOPE, Capacity

# TPU7x, and what would follow it under either form of name.
_LATER = re.compile(r"tpu\d+|v[7-9](?!\d)|v\d\d")


def check_zone(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the zone has TPUs, and this type among them.

    Google adds zones to a generation until it retires it: only then is the catalog's list final.
    Before, a zone that is not listed passes with a warning.
    """
    types = context.catalog.accelerators
    if settings.is_compute:
        types = {name: host.tpu for name, host in context.catalog.hosts.items()}
        if settings.tpu.accelerator_type not in types:
            return  # Another check names the types, whose zones differ.
    offered = [name for name, other in types.items() if settings.zone in other.zones]
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    may_be_new = accelerator is not None and not accelerator.zones_final
    if not offered and not (may_be_new and catalog.is_zone_name(settings.zone)):
        having = (accelerator, *types.values()) if accelerator else types.values()
        zones = dict.fromkeys(zone for each in having for zone in each.zones)
        yield without_tpus("zone", settings.zone, zones)
        return
    if accelerator and accelerator.zones_final and settings.zone not in accelerator.zones:
        same = [name for name in offered if types[name].family == accelerator.family]
        cure = (
            f"Use {one_of(accelerator.zones)} for it; {settings.zone} has "
            f"{', '.join((same or offered)[:5])}"
        )
        yield Problem("zone", settings.zone, f"offers no {accelerator.name}", cure)


def check_accelerator(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the type exists with this architecture.

    A generation after those that the TPU API serves gets a message of its own: it does exist.
    """
    types = context.catalog.accelerators
    wanted = settings.tpu.accelerator_type
    accelerator = context.catalog.accelerator(wanted)
    if settings.is_compute:
        return  # check_compute_type looks at machine types.
    if accelerator is None:
        later = _LATER.match(wanted)
        why = (
            "is of a generation that the Cloud TPU API doesn't support: TPU7x and later are on "
            "Compute Engine and GKE only (docs/tpu-types.md)"
            if later
            else "is not a TPU type that Google offers"
        )
        known = (*types, *context.catalog.hosts)
        cure = (
            "Use architecture compute with tpu7x-standard-4t" if later else nearest(wanted, known)
        )
        yield Problem("tpu.acceleratorType", wanted, why, cure)
    elif "compute" in accelerator.architectures:
        why = "is a machine type of Compute Engine"
        cure = "Use architecture compute, or a type of the Cloud TPU API"
        yield Problem("tpu.acceleratorType", wanted, why, cure)
    elif settings.architecture.value not in accelerator.architectures:
        nodes = [name for name, other in types.items() if "node" in other.architectures]
        why = f"doesn't exist for {wanted}"
        cure = f"Use architecture vm, or one of {', '.join(nodes)}"
        yield Problem("architecture", settings.architecture.value, why, cure)


def check_form(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse settings that belong to the other form of TPU.

    The forms have different APIs and resources. A setting that one of them lacks has nowhere to go,
    and its author would believe that it counts.
    """
    tpu, instead = settings.tpu, "Set {} instead"
    if settings.is_compute:
        return  # check_compute_form has its own words.
    if not settings.is_node:
        why, cure = "is for architecture node; a TPU VM has ", instead.format("tpu.runtimeVersion")
        runtime, address = f"{why}a runtime", f"{why}its address from the subnet"
        yield from misplaced({"tpu.tensorflowVersion": tpu.tensorflow_version}, runtime, cure)
        yield from misplaced({"tpu.cidrBlock": tpu.cidr_block}, address, "Remove it")
        return
    why, cure = "is for architecture vm", instead.format("tpu.tensorflowVersion")
    version = f"{why}; a TPU Node has a TensorFlow version"
    yield from misplaced({"tpu.runtimeVersion": tpu.runtime_version}, version, cure)
    queued = tpu.queued and tpu.queued.written()
    not_queued = f"{why}; Google doesn't queue TPU Nodes"
    yield from misplaced({"tpu.queued": queued}, not_queued, "Remove it")
    if settings.trains_on_tpu:
        yield Problem("training.runOn", "tpu", f"{why}; a TPU Node allows no login", "Use vm")
    if tpu.capacity not in (Capacity.ON_DEMAND, Capacity.PREEMPTIBLE):
        buy = "Use on-demand or preemptible for a TPU Node"
        yield Problem("tpu.capacity", tpu.capacity.value, why, buy)
    yield from misplaced(
        {
            "tpu.slices": tpu.slices if tpu.slices > 1 else None,
            "tpu.dataDisks": [disk.written() for disk in tpu.data_disks] or None,
            "tpu.bootDiskGib": tpu.boot_disk_gib,
            "tpu.externalIps": tpu.external_ips,
            "tpu.tags": list(tpu.tags) or None,
            "tpu.scopes": list(tpu.scopes) if tpu.scopes != (FULL_SCOPE,) else None,
            "tpu.secureBoot": tpu.secure_boot,
            "tpu.autocheckpoint": tpu.autocheckpoint,
        },
        f"{why}; a TPU Node has none",
        "Remove it, or use architecture vm",
    )


def warn_about_node(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn that Google makes classic nodes for few projects.

    Sources: github.com/hashicorp/terraform-provider-google/issues/22526 and
    github.com/GoogleCloudPlatform/magic-modules/issues/13759 (2025-04).
    """
    if settings.is_node:
        yield (
            "architecture is node. Since 2025-04-15 Google denies new TPU Nodes to projects that "
            'aren\'t on its list ("Your request to provision TPU Node has been denied"), when you '
            "already pay for the VM. Use architecture vm unless your project is on the list."
        )


# --- Settings that only TPU VMs have

_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SCOPES = "https://www.googleapis.com/auth/"
_MAIL = "https://mail.google.com/"


def check_tags(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that network tags follow Google's rules."""
    why = (
        "is not a network tag (at most 63 lower-case letters, digits and hyphens, a letter first, "
    )
    why += "no hyphen last)"
    for setting, tags in (("tpu.tags", settings.tpu.tags), ("network.tags", settings.network.tags)):
        for number, tag in enumerate(tags):
            if not _TAG.fullmatch(tag):
                yield Problem(f"{setting}[{number}]", tag, why, "Use one like tpu-workers")


def check_scopes(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that scopes exist, and that a trainer on the TPU VM has the one that it needs.

    A token of a machine is good for what both its scopes and its account's roles allow.
    """
    scopes = settings.tpu.scopes
    for number, scope in enumerate(scopes):
        if not scope.startswith(_SCOPES) and scope != _MAIL:
            why, cure = "is not an access scope of Google's", f"Use URLs such as {FULL_SCOPE}"
            yield Problem(f"tpu.scopes[{number}]", scope, why, cure)
    if not scopes:
        why = "are empty, which Google treats as all"
        yield Problem("tpu.scopes", [], why, f"Remove it to use {FULL_SCOPE}")
    elif settings.trains_on_tpu and FULL_SCOPE not in scopes:
        why = "lack a scope that the trainer on the TPU VM needs (training.runOn)"
        cure = f"Add {FULL_SCOPE}: IAM, not the scope, decides what it may do"
        yield Problem("tpu.scopes", list(scopes), why, cure)


def check_jobs(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse jobs with an account of their own where a server as the machines' obeys them."""
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    serves = settings.tpu.slices > 1 or (runtime is not None and runtime.serves_grpc)
    if settings.jobs.apart and settings.trains_on_tpu and serves:
        yield Problem(
            "jobs.asRoot",
            False,
            "has no effect with training.runOn: tpu on this TPU, because any job can use its "
            "gRPC as root and with the VM's service account",
            "Set training.runOn: vm, use one slice and no -pod runtime, or set jobs.asRoot: true",
        )


def warn_about_slices(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn that the trainer uses the first slice: TensorFlow's TPUStrategy drives one TPU."""
    if settings.tpu.slices > 1:
        first, *_ = context.names.tpus(settings.tpu.slices)
        yield (
            f"tpu.slices is {settings.tpu.slices}, but TensorFlow's TPUStrategy drives one TPU, "
            f"so the trainer uses {first}. Other programs find all slices in the output "
            "tpu_endpoints and the metadata tpu-names."
        )


# --- Further zones of a TPU from the queue

_SETTING = "tpu.queued.fallbackZones"
_SWITCH_ON = (
    "Switch AI zones on: `gcloud beta compute preview-features update ai-zones-visibility "
    "--activation-status=enabled --rollout-plan=fast-rollout --project={}`"
)


def switch_on(zone: str, project: str) -> str:
    """Return how an AI zone such as us-central1-ai1a is shown to a project; empty for others.

    Source: docs.cloud.google.com/compute/docs/regions-zones/manage-ai-zones (2026-11-24).
    """
    return _SWITCH_ON.format(project) if "-ai" in zone else ""


def check_fallback_zones(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the TPU can be in each zone, and that nothing ties it to one.

    Bucket and network are in one region, and the VM stays where it is: so zones of that region.
    """
    queued = settings.tpu.queued
    if queued is None or settings.is_node or settings.is_compute:
        return
    zones = list(queued.fallback_zones)
    if not zones:
        yield from misplaced(
            {"tpu.queued.zoneMinutes": queued.zone_minutes},
            "is only for a TPU with several zones",
            "Set tpu.queued.fallbackZones, or remove it",
        )
        return
    wrong = [f"{zone} {why}" for zone, why in _wrong(settings, context)]
    if wrong:
        accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
        others = accelerator.zones if accelerator else ()
        offered = (zone for zone in others if zone.rpartition("-")[0] == settings.region)
        good = [zone for zone in offered if zone != settings.zone]
        cure = f"Use {one_of(good)}" if good else "Remove it: there is no other zone"
        yield Problem(_SETTING, zones, f"is invalid: {'; '.join(wrong)}", cure)
    if tie := _tie(settings):
        yield Problem(_SETTING, zones, *tie)


def warn_about_ai_zones(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of zones that Google hides until a project switches them on."""
    for zone in settings.tpu_zones:
        if cure := switch_on(zone, settings.project):
            hidden = f"{settings.setting_of(zone)}: {zone} is an AI zone, which Google may hide. "
            hidden += f"{cure}."
            where = f" The VM is in {settings.vm_zone}, because AI zones have no usual machines."
            yield hidden if settings.is_compute else hidden + where


def _wrong(settings: StackSettings, context: Context) -> Iterator[tuple[str, str]]:
    """Yield each zone that can't be used, and why."""
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    known = [settings.zone]
    for zone in settings.tpu.queued.fallback_zones if settings.tpu.queued else ():
        if zone in known:
            is_own = zone == settings.zone
            yield zone, "is the stack's zone already" if is_own else "is listed twice"
        elif zone.rpartition("-")[0] != settings.region:
            yield zone, f"is not in {settings.region}, where the bucket and the network are"
        elif not _may_offer(accelerator, zone):
            yield zone, f"offers no {settings.tpu.accelerator_type}"
        known.append(zone)


def _may_offer(accelerator: Accelerator | None, zone: str) -> bool:
    """Return whether a zone has a type, or may get it; another check names unknown types."""
    if accelerator is None or zone in accelerator.zones:
        return True
    return not accelerator.zones_final and catalog.is_zone_name(zone)


def _tie(settings: StackSettings) -> tuple[str, str] | None:
    """Return why the TPU can't move, and the cure; None if it can."""
    queued = settings.tpu.queued
    if queued and not queued.enabled:
        return "contradicts tpu.queued.enabled: only a queued TPU moves", "Remove one"
    if queued and queued.reservation:
        return "contradicts tpu.queued.reservation, which is in one zone", "Remove one"
    if settings.tpu.data_disks:
        return "contradicts tpu.dataDisks, which are in one zone", "Remove one, or read the bucket"
    return None


# --- Queue: settings that need it, and settings that exclude each other in it

_RESERVATION = re.compile(
    r"(projects/[^/]+/locations/(?P<zone>[^/]+)/reservations/)?[a-z]([-a-z0-9]*[a-z0-9])?"
)


def check_without_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse, without the queue, settings for which Google's provider has no field."""
    tpu = settings.tpu
    if settings.is_node or settings.is_compute or tpu.queue:
        return
    yield from misplaced(
        {"tpu.bootDiskGib": tpu.boot_disk_gib, "tpu.autocheckpoint": tpu.autocheckpoint},
        "is only for a queued TPU: Google's provider has no field for it",
        "Set tpu.queued: {}, or remove it",
    )


def check_reservation(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check a reservation's name and zone, and that the TPU is bought from it."""
    queue, capacity = settings.tpu.queue, settings.tpu.capacity
    if settings.is_node or queue is None:
        return
    if queue.reservation_bound and not queue.reservation:
        why, cure = "names no reservation", "Set tpu.queued.reservation, or remove it"
        yield Problem("tpu.queued.reservationBound", True, why, cure)
    if not (name := queue.reservation):
        return
    named = _RESERVATION.fullmatch(name)
    if named is None:
        why = "is not a reservation's name"
        cure = "Use NAME, or projects/PROJECT/locations/ZONE/reservations/NAME"
        yield Problem("tpu.queued.reservation", name, why, cure)
    elif named["zone"] not in (None, settings.zone):
        why, cure = f"is not in the stack's zone {settings.zone}", "Use a reservation of that zone"
        yield Problem("tpu.queued.reservation", name, why, cure)
    if capacity is not Capacity.RESERVED:
        why = f"contradicts tpu.capacity: {capacity.value}"
        cure = "Set tpu.capacity: reserved, or remove it"
        yield Problem("tpu.queued.reservation", name, why, cure)


def check_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the request's conditions suit the capacity and the number of slices.

    A request that Google can never fulfil is not refused at once: it may wait until someone looks.
    """
    tpu, queue = settings.tpu, settings.tpu.queue
    if settings.is_node or settings.is_compute or queue is None:
        return
    if queue.guaranteed_hours and tpu.capacity is Capacity.FLEX_START:
        why = "contradicts tpu.capacity: flex-start, which stays for tpu.queued.runHours"
        cure = "Set tpu.queued.runHours instead"
        yield Problem("tpu.queued.guaranteedHours", queue.guaranteed_hours, why, cure)
    if queue.guaranteed_hours and tpu.capacity in (Capacity.SPOT, Capacity.PREEMPTIBLE):
        why = f"contradicts tpu.capacity: {tpu.capacity.value}, which Google can preempt"
        cure = "Set tpu.capacity: on-demand or reserved, or remove it"
        yield Problem("tpu.queued.guaranteedHours", queue.guaranteed_hours, why, cure)
    if tpu.timeouts.create_minutes is not None:
        why, cure = "is for a TPU that isn't queued", "Set tpu.queued.waitMinutes instead"
        yield Problem("tpu.timeouts.createMinutes", tpu.timeouts.create_minutes, why, cure)


# 10 minutes: docs.cloud.google.com/tpu/docs/request-using-flex-start, 2025-09-04.
_SHORTEST_HOURS = 1 / 6


def check_flex_start(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that a TPU for a while says how long, queues, and is of a kind that Google names."""
    tpu = settings.tpu
    hours = tpu.queued.run_hours if tpu.queued else None
    if tpu.capacity is not Capacity.FLEX_START:
        yield from misplaced(
            {"tpu.queued.runHours": hours},
            f"contradicts tpu.capacity: {tpu.capacity.value}, which stays until it is deleted",
            "Set tpu.capacity: flex-start, or remove it",
        )
        return
    if settings.is_node:
        return
    if tpu.queue is None and not settings.is_compute:
        why = "contradicts tpu.capacity: flex-start, which is only available as a queued resource"
        yield Problem("tpu.queued.enabled", False, why, "Remove it")
    elif hours is None:
        why = "is required with tpu.capacity: flex-start"
        cure = "Set after how many hours Google deletes the TPU, at most 168"
        yield Problem("tpu.queued.runHours", UNSET, why, cure)
    elif hours < _SHORTEST_HOURS:
        cure = "Use at least 0.17 (10 minutes)"
        yield Problem("tpu.queued.runHours", hours, "is shorter than flex-start allows", cure)
    accelerator = context.catalog.accelerator(tpu.accelerator_type)
    if accelerator and not accelerator.flex_start:
        named = {each.family for each in context.catalog.accelerators.values() if each.flex_start}
        why = f"is for {' and '.join(sorted(named))}, but tpu.acceleratorType is {accelerator.name}"
        yield Problem("tpu.capacity", tpu.capacity.value, why, "Use spot, or a type of those")


def warn_about_flex_start(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of a zone in which Google does not name the generation for flex-start."""
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    if settings.tpu.capacity is not Capacity.FLEX_START or accelerator is None:
        return
    for zone in settings.tpu_zones if accelerator.flex_start else ():
        if zone in accelerator.flex_start:
            continue
        named = f"{accelerator.family} ({', '.join(accelerator.flex_start)})"
        yield (
            f'{settings.setting_of(zone)}: "{zone}" is not a zone for which Google '
            f"documents flex-start for {named}; it may be new"
        )


# --- What the agent can recreate


def check_recovery(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse recovery where no machine is left to do it, or where it would fight the state."""
    if not settings.recovery.enabled:
        return
    why = _why_not(settings)
    if why:
        said = f"is not available for this stack: {why[0]}"
        yield Problem("recovery.enabled", True, said, why[1])


def _why_not(settings: StackSettings) -> tuple[str, str] | None:
    """Return why the agent can't recreate the TPU, and the cure; None if it can."""
    queue, elsewhere = settings.tpu.queue, "run `tpustack recover --loop --stack NAME`"
    if settings.is_compute:
        if settings.tpu.capacity is not Capacity.SPOT:
            # docs.cloud.google.com/tpu/docs/failure-recovery: managed capacity recovers itself.
            why = f"Google itself recovers or ends machines of {settings.tpu.capacity} capacity"
            return f"on Compute Engine it is for tpu.capacity: spot; {why}", "Remove it"
        if not settings.vm.create:
            return "vm.create: false leaves no VM for the agent", "Remove one of the two"
        if settings.network.project:
            why = "the agent's account may not use the subnetwork of network.project"
            return why, f"Remove it, and {elsewhere} on another computer"
        return None
    if settings.trains_on_tpu:
        return (
            "with training.runOn: tpu the agent would be lost along with the TPU",
            f"Remove it, and {elsewhere} on another computer",
        )
    if queue is not None and (queue.run_hours or queue.reservation_bound):
        ends = "after tpu.queued.runHours" if queue.run_hours else "when the reservation ends"
        return f"Google deletes its TPU {ends}, by design", "Remove it"
    return None


# --- What is unverified (docs/verification.md)

_LIVE = "`tpustack check --live` asks Google"


def warn_about_unlisted(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of what the catalog does not know, so that only Google can say whether it exists."""
    for setting, value, known in _unlisted(settings, context.catalog):
        yield (
            f"{setting}: the catalog does not know {value}; {_LIVE}. If it is a typo: "
            f"{nearest(value, known)}."
        )


def _unlisted(
    settings: StackSettings, known: catalog.Catalog
) -> Iterator[tuple[str, str, Iterable[str]]]:
    """Yield a setting, what it names, and what the catalog knows of that kind."""
    if accelerator := known.accelerator(settings.tpu.accelerator_type):
        if not accelerator.listed:
            yield "tpu.acceleratorType", accelerator.name, known.accelerators
        offered = [f"{accelerator.name} in {zone}" for zone in accelerator.zones]
        for zone in settings.tpu_zones:
            if zone not in accelerator.zones:
                yield settings.setting_of(zone), f"{accelerator.name} in {zone}", offered
    runtime = known.runtime(settings.tpu.runtime_version or "")
    if runtime and not runtime.listed:
        yield "tpu.runtimeVersion", runtime.name, known.runtimes
    if settings.vm.machine_type not in known.machine_types:
        yield "vm.machineType", settings.vm.machine_type, known.machine_types


def warn_about_unverified(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn, in one short line, of what the stack's TPU VM rests on without Google's documentation.

    A stack file that sets training.runOn has chosen where the trainer runs.
    """
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.is_node or accelerator is None or runtime is None:
        return
    for name, why in context.catalog.proofs.refused.items():
        path = f"infra/tpu_infra/catalog/proofs/{name}"
        yield f"{path} {why}, so it proves nothing. Restore it, or delete it"
    found = [*_unverified(settings, accelerator, runtime)]
    if found:
        yield unverified(*found, anchor="#vm-drives-a-tpu-vm")


def _unverified(
    settings: StackSettings, accelerator: Accelerator, runtime: Runtime
) -> Iterator[str]:
    if runtime.listed and runtime.proof is Proof.INFERRED:
        yield f"{runtime.name} may not exist ({_LIVE})"
    if runtime.broken:
        yield f"TensorFlow in the image of {runtime.name} crashes on import"
    if accelerator.doubt:
        yield accelerator.doubt
    if "run_on" not in settings.training.model_fields_set:
        worker = runtime.name if runtime.serves_grpc else "the tensorflow-tpu wheel's worker"
        yield (
            f"training.runOn: vm (the default) with {worker}. Google documents runOn: tpu; set "
            "either one to hide this warning"
        )
