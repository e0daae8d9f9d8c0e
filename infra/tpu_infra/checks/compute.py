"""Checks of a TPU that is a machine of Compute Engine: type, disk, capacity, software, form."""

from collections.abc import Iterator

from tpu_infra.catalog.entries import Host
from tpu_infra.checks.context import Context, nearest, one_of, unverified
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem, misplaced
from tpu_infra.settings.machines import Backend, Capacity

# docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode, of which one copy limits bulk
# mode to bound reservations and flex-start and another to TPUs; /tpu/docs/spot-compute recommends
# groups for spot slices, and /tpu/docs/quickstart-create-multi-host-slice has one on demand.
_DOUBT_OF_SLICES = "Google's pages disagree on which capacity a group in bulk mode can have"


def host_of(settings: StackSettings, context: Context) -> Host | None:
    """Return the machine that is the stack's TPU; None for other forms and unknown types."""
    if not settings.is_compute:
        return None
    return context.catalog.hosts.get(settings.tpu.accelerator_type)


def backend_of(settings: StackSettings, context: Context) -> Backend:
    """Return what runs the trainer's steps: what is set, else what the TPU can do.

    TensorFlow drives only the chips of its own machine where nothing serves gRPC, and no release
    of it drives a TPU7x.
    """
    host, wanted = host_of(settings, context), settings.training.backend
    if wanted is not None or host is None or settings.jobs.enabled:
        return wanted or Backend.TENSORFLOW
    alone = host.tpu_of(settings.tpu.topology).hosts == 1
    set_for = settings.training.tensorflow_version and "tensorflow" in host.frameworks
    return Backend.TENSORFLOW if alone and set_for else Backend.JAX


def check_compute_type(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that Compute Engine makes the machine type, with this topology."""
    tpu, host = settings.tpu, host_of(settings, context)
    if not settings.is_compute:
        why = "is for architecture compute; the type of another TPU decides it"
        yield from misplaced({"tpu.topology": tpu.topology}, why, "Remove it")
        return
    if host is None:
        yield _unknown_type(settings, context)
        return
    if tpu.topology and tpu.topology not in (host.tpu.topology, *host.slices):
        why = f"is not a topology of {host.tpu.name}"
        cure = f"Use {one_of((host.tpu.topology, *host.slices))}"
        yield Problem("tpu.topology", tpu.topology, why, cure)


def _unknown_type(settings: StackSettings, context: Context) -> Problem:
    hosts, wanted = context.catalog.hosts, settings.tpu.accelerator_type
    legacy = context.catalog.accelerators.get(wanted)
    family = legacy.family if legacy else ""
    same = [name for name, host in hosts.items() if host.tpu.family == family]
    if legacy is None and not context.catalog.is_listed_only(wanted):
        why = "is not a Compute Engine machine type with a TPU"
        cure = nearest(wanted, hosts)
    elif not same:
        why = "is not available on Compute Engine"
        cure = f"Use {one_of(hosts)}, or architecture vm with a type of the Cloud TPU API"
    else:
        why = "is a type of the Cloud TPU API, but architecture compute needs a machine type"
        cure = f"Use {one_of(same)}"
    return Problem("tpu.acceleratorType", wanted, why, cure)


def check_compute_capacity(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the TPU is bought in a way that Google has for machines."""
    capacity, queued = settings.tpu.capacity, settings.tpu.queued
    if not settings.is_compute:
        return
    if capacity is Capacity.PREEMPTIBLE:
        why = "is the legacy form of spot, which machines with a TPU don't have"
        yield Problem("tpu.capacity", "preemptible", why, "Use spot")
    named = queued and (queued.reservation or queued.reservation_bound)
    if capacity is Capacity.RESERVED and not named:
        why = "is required with tpu.capacity: reserved"
        cure = "Set the name of the reservation that provides the machine"
        yield Problem("tpu.queued.reservation", UNSET, why, cure)


def check_compute_software(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that what runs on the machine exists for its generation."""
    host, training = host_of(settings, context), settings.training
    if host is None:
        if training.backend is Backend.JAX and not settings.is_compute:
            why = "requires architecture compute, where each machine of the TPU runs the trainer"
            cure = "Remove it, and run the trainer as a job (docs/models.md#train-on-jax)"
            yield Problem("training.backend", "jax", why, cure)
        return
    others, version = " and ".join(host.frameworks), training.tensorflow_version
    if settings.jobs.enabled:
        why = "is for the trainer, but jobs.enabled runs jobs instead"
        cure = "Remove it; a job's own command chooses"
        yield from misplaced({"training.backend": training.backend}, why, cure)
        if version and "tensorflow" not in host.frameworks:
            why = f"doesn't run on {host.tpu.family}, where Google supports {others}"
            yield Problem("training.tensorflowVersion", version, why, "Remove it")
        return
    if backend_of(settings, context) is Backend.JAX:
        return
    if "tensorflow" not in host.frameworks:
        why = f"doesn't run on {host.tpu.family}, where Google supports {others}"
        yield Problem("training.backend", "tensorflow", why, "Use jax")
    elif (count := host.tpu_of(settings.tpu.topology).hosts) > 1:
        why = f"can't train on {count} machines: it drives only the chips of its own"
        yield Problem("training.backend", "tensorflow", why, "Use jax")
    elif version is None:
        why = f"is required: the image of {host.tpu.name} has no TensorFlow"
        cure = "Set the version to install, for example 2.19.1, or training.backend: jax"
        yield Problem("training.tensorflowVersion", UNSET, why, cure)


def check_compute_form(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse settings that belong to another form of TPU, and what only those forms can do."""
    if not settings.is_compute:
        return
    tpu, queued, vm = settings.tpu, settings.tpu.queued, settings.vm.written()
    if not settings.trains_on_tpu:
        why = "is for a VM that drives the TPU; with architecture compute the TPU's machines train"
        yield Problem("training.runOn", settings.training.run_on.value, why, "Set tpu")
    # One message for the group, whatever is in it.
    why = "is for a VM next to the TPU, which architecture compute has only for recovery.enabled"
    alone = vm and not settings.recovery.enabled
    yield from misplaced({"vm": vm if alone else None}, why, "Remove the group")
    queueing = queued.written() if queued else {}
    own = {"runHours", "reservation", "reservationBound"}
    yield from misplaced(
        {f"tpu.queued.{name}": value for name, value in queueing.items() if name not in own},
        "is for a queued resource of the Cloud TPU API, which Compute Engine doesn't have",
        "Remove it, or use architecture vm",
    )
    yield from misplaced(
        {
            "tpu.runtimeVersion": tpu.runtime_version,
            "tpu.tensorflowVersion": tpu.tensorflow_version,
        },
        "is for the Cloud TPU API; Compute Engine boots Google's image for the machine type",
        "Remove it, and set training.tensorflowVersion for TensorFlow",
    )
    yield from misplaced(
        {
            "tpu.cidrBlock": tpu.cidr_block,
            "tpu.slices": tpu.slices if tpu.slices > 1 else None,
            "tpu.dataDisks": [disk.written() for disk in tpu.data_disks] or None,
            "tpu.autocheckpoint": tpu.autocheckpoint,
        },
        "is for the Cloud TPU API, which manages no machines of Compute Engine",
        "Remove it, or use architecture vm",
    )
    yield from misplaced(
        {"limits.idleMinutes": settings.limits.idle_minutes, "limits.role": settings.limits.role},
        "needs the Cloud TPU API, which doesn't manage Compute Engine machines",
        "Remove it; limits.timeToLiveHours ends the machine",
    )


# docs.cloud.google.com/compute/docs/instances/limit-vm-runtime: 30 seconds to 120 days.
_LONGEST_HOURS = 120 * 24


def check_compute_life(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that Google can end the machine so late, and that only one setting has its end."""
    hours = settings.limits.time_to_live_hours
    if not settings.is_compute or hours is None:
        return
    if hours > _LONGEST_HOURS:
        why = "is longer than the 120 days after which Google can end a machine of Compute Engine"
        yield Problem("limits.timeToLiveHours", hours, why, f"Use at most {_LONGEST_HOURS}")
    if settings.tpu.capacity is Capacity.FLEX_START:
        why = "contradicts tpu.capacity: flex-start, which ends after tpu.queued.runHours"
        yield Problem("limits.timeToLiveHours", hours, why, "Remove it")


def warn_about_compute(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of what nothing here brings back, and of what is unverified."""
    host, capacity = host_of(settings, context), settings.tpu.capacity
    if host is None:
        return
    if settings.has_vm:
        yield (
            "recovery.enabled: the VM only recreates a preempted TPU. The trainer or the jobs run "
            "on the TPU's machines."
        )
    elif capacity is Capacity.SPOT:
        yield (
            "tpu.capacity is spot: a preemption deletes the machine. Run `tpustack recover --loop "
            f"--stack {context.stack}` on another computer to recreate it; then training and jobs "
            "resume."
        )
    hosts = host.tpu_of(settings.tpu.topology).hosts
    # The provider's instance has no `params.requestValidForDuration` (7.45).
    if capacity is Capacity.FLEX_START and hosts == 1:
        yield (
            "tpu.capacity is flex-start: Google's provider can't let the request for one machine "
            "wait, so without capacity `pulumi up` fails at once."
        )
    on_jax = backend_of(settings, context) is Backend.JAX
    versions = settings.training.tensorflow_version and not on_jax
    doubt = [host.tpu.doubt] if host.tpu.doubt and versions else []
    if hosts > 1:
        doubt.append(_DOUBT_OF_SLICES)
    if on_jax:
        doubt.append("the trainer on JAX has run on CPUs only")
    yield unverified("architecture: compute", *doubt)
