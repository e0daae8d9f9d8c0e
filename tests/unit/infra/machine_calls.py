"""What the provider asks of Google for some settings: TPU, VM and their disks."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from tpu_infra.checks.context import Context
from tpu_infra.components.tpu import ComputeTpu
from tpu_infra.components.vm import scheduling as vm_scheduling
from tpu_infra.settings import StackSettings
from tpu_infra.settings.machines import (
    FULL_SCOPE,
    Architecture,
    Capacity,
    DataDisk,
    DiskMode,
    RunOn,
    TpuDiskType,
)

from .calls import Call, email_of, labels_of, network_of, surroundings
from .generate_values import Json

_COMPUTE, _TPU = "compute.googleapis.com", "tpu.googleapis.com"
_MODES = {DiskMode.READ_WRITE: "READ_WRITE", DiskMode.READ_ONLY: "READ_ONLY"}


def calls(settings: StackSettings, context: Context) -> Iterator[Call]:
    """The creations that a stack consists of, as far as Google judges the settings by them."""
    yield from surroundings(settings, context)
    if settings.is_compute:
        yield from _hosts(settings, context)
        return
    if settings.architecture is Architecture.NODE:
        yield _classic_node(settings, context)
    elif settings.tpu.queue:
        yield from _queued(settings, context)
    else:
        yield from _tpu_vms(settings, context)
    if settings.vm.instance_group:
        yield from _managed_vm(settings, context)
    else:
        yield from _vm(settings, context)


def _place(settings: StackSettings) -> str:
    return f"projects/{settings.project}/locations/{settings.zone}"


def _compute(settings: StackSettings, collection: str) -> str:
    return f"/compute/beta/projects/{settings.project}/{collection}"


def _classic_node(settings: StackSettings, context: Context) -> Call:
    tpu = settings.tpu
    network, _ = network_of(settings, context)
    body: Json = {
        "acceleratorType": tpu.accelerator_type,
        "tensorflowVersion": tpu.tensorflow_version,
        "cidrBlock": tpu.cidr_block or "",
        "network": network,
        "labels": labels_of(settings),
        "schedulingConfig": _TIERS[tpu.capacity],
    }
    return _TPU, f"/v1/{_place(settings)}/nodes", {"nodeId": context.names.tpu}, body


_TIERS: dict[Capacity, Json] = {
    Capacity.ON_DEMAND: {},
    Capacity.SPOT: {"spot": True},
    Capacity.PREEMPTIBLE: {"preemptible": True},
    Capacity.RESERVED: {"reserved": True},
    Capacity.FLEX_START: {},  # Only the queue has it.
}


def _tpu_vms(settings: StackSettings, context: Context) -> Iterator[Call]:
    """The last slice, and the first where they share disks."""
    names = context.names.tpus(settings.tpu.slices)
    shared = len(names) > 1 and settings.tpu.data_disks
    made: set[str] = set()
    for name in (names[0], names[-1]) if shared else names[-1:]:
        node = _node(settings, context)
        yield from _data_disks(settings, context, name, node, made)
        node["schedulingConfig"] = _TIERS[settings.tpu.capacity]
        yield _TPU, f"/v2alpha1/{_place(settings)}/nodes", {"nodeId": name}, node


def _node(settings: StackSettings, context: Context) -> Json:
    tpu = settings.tpu
    network, subnetwork = network_of(settings, context)
    return {
        "acceleratorType": tpu.accelerator_type,
        "runtimeVersion": tpu.runtime_version,
        "networkConfig": {
            "network": network,
            "subnetwork": subnetwork,
            "enableExternalIps": tpu.external_ips,
        },
        "serviceAccount": {"email": email_of(settings, context), "scope": list(tpu.scopes)},
        "labels": labels_of(settings),
        "tags": [context.names.network, *settings.network.tags, *tpu.tags],
        **({"shieldedInstanceConfig": {"enableSecureBoot": True}} if tpu.secure_boot else {}),
    }


def _data_disks(
    settings: StackSettings, context: Context, owner: str, node: Json, made: set[str]
) -> Iterator[Call]:
    """Makes the disks that are not in `made` yet, and attaches all of them to the node."""
    tpu = settings.tpu
    accelerator = context.catalog.accelerators.get(tpu.accelerator_type)
    default = accelerator.disk_types[0] if accelerator else TpuDiskType.PD_BALANCED.value
    attached = []
    for disk in tpu.data_disks:
        read_only = disk.mode is DiskMode.READ_ONLY
        many = read_only and (disk.type or default) == TpuDiskType.HYPERDISK_ML.value
        body: Json = {}
        if disk.source:
            path = disk.source
            kinds = accelerator.disk_types if accelerator else (default,)
            body = _given(path, kinds)
        else:
            of = context.names.tpu if read_only else owner
            path = f"projects/{settings.project}/zones/{settings.zone}/disks/{of}-{disk.name}-0123"
            body = _new(disk, default, path.rpartition("/")[2], settings, many=many)
        if body and path not in made:
            made.add(path)
            yield _COMPUTE, f"/compute/beta/{path.rpartition('/')[0]}", {}, body
        attached.append({"sourceDisk": path, "mode": _MODES[disk.mode]})
    if attached:
        node["dataDisks"] = attached


def _given(path: str, kinds: tuple[str, ...]) -> Json:
    """A disk that is there already: of a kind that the TPU takes, for many if such there are."""
    if not path.endswith("/disks/corpus"):
        return {}
    shared = TpuDiskType.HYPERDISK_ML.value
    many = {"type": shared, "accessMode": "READ_ONLY_MANY"}
    return {"name": "corpus", "sizeGb": "100", **(many if shared in kinds else {"type": kinds[0]})}


def _new(disk: DataDisk, default: str, name: str, settings: StackSettings, *, many: bool) -> Json:
    return {
        "name": name,
        "type": disk.type.value if disk.type else default,
        "labels": labels_of(settings),
        **({"sizeGb": str(disk.size_gib)} if disk.size_gib else {}),
        **({"sourceSnapshot": disk.snapshot} if disk.snapshot else {}),
        **({"accessMode": "READ_ONLY_MANY"} if many else {}),
    }


def _queued(settings: StackSettings, context: Context) -> Iterator[Call]:
    tpu, queue = settings.tpu, settings.tpu.queue
    assert queue is not None
    node = _node(settings, context)
    yield from _data_disks(settings, context, context.names.tpus(tpu.slices)[0], node, set())
    if tpu.boot_disk_gib:
        node["bootDiskConfig"] = {"diskSizeGb": str(tpu.boot_disk_gib)}
    if tpu.autocheckpoint:
        node["autocheckpointEnabled"] = True
    several: Json = {"nodeCount": tpu.slices, "nodeIdPrefix": context.names.tpu}
    which = {"multiNodeParams": several} if tpu.slices > 1 else {"nodeId": context.names.tpu}
    request: Json = {"tpu": {"nodeSpec": [{"parent": _place(settings), "node": node, **which}]}}
    guaranteed: Json = {}
    if tpu.capacity is Capacity.SPOT:
        request["spot"] = {}
    elif tpu.capacity is Capacity.PREEMPTIBLE:
        request["bestEffort"] = {}
    elif tpu.capacity is Capacity.RESERVED and not queue.reservation_bound:
        guaranteed["reserved"] = True
    elif tpu.capacity is Capacity.FLEX_START:
        request["provisioningModel"] = "FLEX_START"
        if queue.run_hours:
            request["runDuration"] = {"maxRunDuration": f"{round(queue.run_hours * 3600)}s"}
    if queue.guaranteed_hours:
        guaranteed["minDuration"] = f"{round(queue.guaranteed_hours * 3600)}s"
    if guaranteed:
        request["guaranteed"] = guaranteed
    if queue.reservation:
        full = "/" in queue.reservation
        place = "" if full else f"{_place(settings)}/reservations/"
        request["reservationName"] = f"{place}{queue.reservation}"
        if queue.reservation_bound:
            request["provisioningModel"] = "RESERVATION_BOUND"
    if queue.valid_until:
        until = f"{queue.valid_until:%Y-%m-%dT%H:%M:%SZ}"
        request["queueingPolicy"] = {"validUntilTime": until}
    query = {"queuedResourceId": context.names.tpu}
    yield _TPU, f"/v2alpha1/{_place(settings)}/queuedResources", query, request


def _hosts(settings: StackSettings, context: Context) -> Iterator[Call]:
    """A machine with a TPU, or a slice; it ends with a machine as its group asks for it, later."""
    tpu, name, known = settings.tpu, context.names.tpu, context.catalog.hosts
    zone = f"zones/{settings.zone}"
    # For a type that is not there anything will do: the type is what Google refuses.
    host = known.get(tpu.accelerator_type) or known["ct6e-standard-4t"]
    # The component's own answers, without a program around it.
    component = object.__new__(ComputeTpu)
    component.settings, component.stack = tpu, SimpleNamespace(settings=settings)  # type: ignore[assignment]
    network, subnetwork = network_of(settings, context)
    named = tpu.queued.reservation if tpu.queued else None
    # What is no name of a reservation gets so far in no program.
    wrong = named and named.count("/") not in (0, 5)
    affinity = {} if wrong else component._reservation() or {"type": "NO_RESERVATION"}
    if wrong:
        affinity = {"type": "SPECIFIC_RESERVATION", "specific_reservation": {"values": [named]}}
    reservation = {"consumeReservationType": affinity["type"]}
    reservation |= affinity.get("specific_reservation", {})
    project, _, family = host.image.partition("/")
    params = {
        "sourceImage": f"projects/{project}/global/images/family/{family}",
        "diskSizeGb": str(settings.tpu.compute_disk_gib),
        "diskType": host.tpu.disk_types[0],
    }
    access = [{"type": "ONE_TO_ONE_NAT"}] if tpu.external_ips else []
    interface = {"network": network, "subnetwork": subnetwork, "accessConfigs": access}
    properties: Json = {
        "machineType": tpu.accelerator_type,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        "networkInterfaces": [{**interface, "nicType": "GVNIC"}],
        "scheduling": _camel(component._scheduling()),
        "reservationAffinity": reservation,
        "shieldedInstanceConfig": {"enableSecureBoot": tpu.secure_boot},
        "serviceAccounts": [{"email": email_of(settings, context), "scopes": list(tpu.scopes)}],
        "tags": {"items": [context.names.network, *settings.network.tags, *tpu.tags]},
        "labels": labels_of(settings),
    }
    instances = _compute(settings, f"{zone}/instances")
    if tpu.topology in (None, host.tpu.topology):
        single = {**properties, "machineType": f"{zone}/machineTypes/{tpu.accelerator_type}"}
        params["diskType"] = f"{zone}/diskTypes/{params['diskType']}"
        yield _COMPUTE, instances, {}, {"name": name, **single}
        return
    template = f"projects/{settings.project}/global/instanceTemplates/{name}"
    body: Json = {"name": name, "properties": properties}
    yield _COMPUTE, _compute(settings, "global/instanceTemplates"), {}, body
    workload = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": tpu.topology}
    policies = f"regions/{settings.region}/resourcePolicies"
    body = {"name": name, "workloadPolicy": workload}
    yield _COMPUTE, _compute(settings, policies), {}, body
    flexible = tpu.capacity in (Capacity.FLEX_START, Capacity.SPOT)
    body = {
        "name": name,
        "baseInstanceName": f"{name}-###",
        "versions": [{"instanceTemplate": template}],
        "targetSize": host.tpu_of(tpu.topology).hosts,
        "targetSizePolicy": {"mode": "BULK"},
        "resourcePolicies": {
            "workloadPolicy": f"projects/{settings.project}/{policies}/{name}",
        },
        **(
            {"instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"}}
            if flexible
            else {}
        ),
    }
    yield _COMPUTE, _compute(settings, f"{zone}/instanceGroupManagers"), {}, body
    yield _COMPUTE, instances, {"sourceInstanceTemplate": template}, {"name": f"{name}-one"}


def _instance(settings: StackSettings, context: Context) -> Json:
    """What a VM by itself and the template of a managed one have in common."""
    vm = settings.vm
    network, subnetwork = network_of(settings, context)
    access = [{"type": "ONE_TO_ONE_NAT"}] if vm.public_ip else []
    items = [
        {"key": "enable-oslogin", "value": "TRUE" if vm.os_login else "FALSE"},
        {"key": "serial-port-logging-enable", "value": "true"},
    ]
    return {
        "networkInterfaces": [
            {"network": network, "subnetwork": subnetwork, "accessConfigs": access}
        ],
        "scheduling": _camel(vm_scheduling(vm)),
        "shieldedInstanceConfig": {
            "enableSecureBoot": vm.shielded.secure_boot,
            "enableVtpm": vm.shielded.vtpm,
            "enableIntegrityMonitoring": vm.shielded.integrity_monitoring,
        },
        "serviceAccounts": [{"email": email_of(settings, context), "scopes": [FULL_SCOPE]}],
        "tags": {"items": [context.names.network, *settings.network.tags]},
        "metadata": {"items": items},
        "labels": labels_of(settings),
    }


def image_of(settings: StackSettings) -> str:
    """The boot image as the provider asks for it."""
    project, _, family = settings.vm.image.partition("/")
    return f"projects/{project}/global/images/family/{family}"


def _vm(settings: StackSettings, context: Context) -> Iterator[Call]:
    vm, name = settings.vm, context.names.vm
    place = f"projects/{settings.project}/zones/{settings.vm_zone}"
    kind = f"{place}/diskTypes/{vm.boot_disk_type.value}"
    disks = _compute(settings, f"zones/{settings.vm_zone}/disks")
    boot: Json = {"boot": True, "autoDelete": not vm.keep_boot_disk}
    body: Json
    if vm.keep_boot_disk:
        body = {
            "name": f"{name}-boot",
            "sourceImage": image_of(settings),
            "sizeGb": str(vm.boot_disk_gib),
            "type": kind,
            "labels": labels_of(settings),
        }
        yield _COMPUTE, disks, {}, body
        boot["source"] = f"{place}/disks/{name}-boot"
    else:
        size = str(vm.boot_disk_gib)
        params = {"sourceImage": image_of(settings), "diskSizeGb": size, "diskType": kind}
        boot["initializeParams"] = params
    body = {
        "name": name,
        "machineType": f"{place}/machineTypes/{vm.machine_type}",
        "disks": [boot],
        **_instance(settings, context),
    }
    yield _COMPUTE, _compute(settings, f"zones/{settings.vm_zone}/instances"), {}, body


def _managed_vm(settings: StackSettings, context: Context) -> Iterator[Call]:
    """Ends with the instance as the group asks for it by itself, which it does later and alone."""
    vm, managed, name = settings.vm, settings.vm.instance_group, context.names.vm
    assert managed is not None
    interval = managed.check_interval_seconds
    check: Json = {
        "name": name,
        "type": "HTTP",
        "checkIntervalSec": interval,
        "timeoutSec": min(5, interval),
        "unhealthyThreshold": managed.failed_checks,
        "httpHealthCheck": {"port": 8090},
    }
    watched = settings.training.run_on is RunOn.VM
    if watched:
        yield _COMPUTE, _compute(settings, "global/healthChecks"), {}, check
    params = {
        "sourceImage": image_of(settings),
        "diskSizeGb": str(vm.boot_disk_gib),
        "diskType": vm.boot_disk_type.value,
    }
    properties: Json = {
        "machineType": vm.machine_type,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
        **_instance(settings, context),
    }
    template = f"{name}-01234567"
    body: Json = {"name": template, "properties": properties}
    yield _COMPUTE, _compute(settings, "global/instanceTemplates"), {}, body
    healing: Json = {
        "healthCheck": f"projects/{settings.project}/global/healthChecks/{name}",
        "initialDelaySec": managed.initial_delay_seconds,
    }
    reference = f"projects/{settings.project}/global/instanceTemplates/{template}"
    body = {
        "name": name,
        "baseInstanceName": name,
        "versions": [{"instanceTemplate": reference}],
        "autoHealingPolicies": [healing] if watched else [],
        "targetSize": 0,
    }
    zone = f"zones/{settings.vm_zone}"
    groups = _compute(settings, f"{zone}/instanceGroupManagers")
    yield _COMPUTE, groups, {}, body
    member = {"name": f"{name}-0", "preservedState": {"metadata": {"group": name}}}
    yield _COMPUTE, f"{groups}/{name}/createInstances", {}, {"instances": [member]}
    source = {"sourceInstanceTemplate": reference}
    yield _COMPUTE, _compute(settings, f"{zone}/instances"), source, {"name": f"{name}-0"}


def _camel(snake: Json) -> Json:
    def name(key: str) -> str:
        head, *tail = key.split("_")
        return head + "".join(part.capitalize() for part in tail)

    return {name(key): value for key, value in snake.items()}
