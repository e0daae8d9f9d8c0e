"""What the provider asks of Google for some settings: TPU and VM."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.components.vm import scheduling as vm_scheduling
from infra.settings import StackSettings
from infra.settings.machines import FULL_SCOPE, Architecture, Capacity, RunOn

from .calls import Call, email_of, labels_of, network_of, surroundings
from .generate_values import Json

_COMPUTE, _TPU = "compute.googleapis.com", "tpu.googleapis.com"


def calls(settings: StackSettings, context: Context) -> Iterator[Call]:
    """The creations that a stack consists of, as far as Google judges the settings by them."""
    yield from surroundings(settings, context)
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
    """The last slice."""
    name = context.names.tpus(settings.tpu.slices)[-1]
    node = _node(settings, context)
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
        "tags": [context.names.network],
        **({"shieldedInstanceConfig": {"enableSecureBoot": True}} if tpu.secure_boot else {}),
    }


def _queued(settings: StackSettings, context: Context) -> Iterator[Call]:
    tpu, queue = settings.tpu, settings.tpu.queue
    assert queue is not None
    node = _node(settings, context)
    several: Json = {"nodeCount": tpu.slices, "nodeIdPrefix": context.names.tpu}
    which = {"multiNodeParams": several} if tpu.slices > 1 else {"nodeId": context.names.tpu}
    request: Json = {"tpu": {"nodeSpec": [{"parent": _place(settings), "node": node, **which}]}}
    if tpu.capacity is Capacity.SPOT:
        request["spot"] = {}
    elif tpu.capacity is Capacity.PREEMPTIBLE:
        request["bestEffort"] = {}
    elif tpu.capacity is Capacity.RESERVED and not queue.reservation_bound:
        request["guaranteed"] = {"reserved": True}
    elif tpu.capacity is Capacity.FLEX_START:
        request["provisioningModel"] = "FLEX_START"
        if queue.run_hours:
            request["runDuration"] = {"maxRunDuration": f"{round(queue.run_hours * 3600)}s"}
    if queue.reservation:
        full = "/" in queue.reservation
        place = "" if full else f"{_place(settings)}/reservations/"
        request["reservationName"] = f"{place}{queue.reservation}"
        if queue.reservation_bound:
            request["provisioningModel"] = "RESERVATION_BOUND"
    query = {"queuedResourceId": context.names.tpu}
    yield _TPU, f"/v2alpha1/{_place(settings)}/queuedResources", query, request


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
            "enableSecureBoot": vm.secure_boot,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
        },
        "serviceAccounts": [{"email": email_of(settings, context), "scopes": [FULL_SCOPE]}],
        "tags": {"items": [context.names.network]},
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
    size = str(vm.boot_disk_gib)
    params = {"sourceImage": image_of(settings), "diskSizeGb": size, "diskType": kind}
    body: Json = {
        "name": name,
        "machineType": f"{place}/machineTypes/{vm.machine_type}",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": params}],
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
