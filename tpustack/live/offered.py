"""Questions about what the zone offers: TPU types, runtimes, machine types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.apis import COMPUTE_API, TPU_API
from infra.checks.context import nearest
from infra.checks.tpu import AI, SWITCH_ON
from infra.settings.machines import Architecture
from tpustack.cloud.google import Forbidden, NotFound
from tpustack.live.finding import OK, WRONG, Asked, Finding
from tpustack.live.project import is_enabled, not_enabled

_TPU = "https://tpu.googleapis.com/{}/projects/{}/locations/{}/{}"
_MACHINE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/machineTypes/{}"
# What the TPU API answers for a zone that it does not have, or does not show to the project.
_UNKNOWN = "is not found or access is unauthorized"


def accelerator_type(asked: Asked) -> Iterator[Finding]:
    """Ask whether each zone that the TPU may be in has its type."""
    wanted = asked.settings.tpu.accelerator_type
    if not is_enabled(asked, TPU_API):
        yield not_enabled("TPU type", TPU_API)
        return
    for zone in asked.settings.tpu_zones:
        offered = _offered(asked, zone, "v2", "acceleratorTypes", "type")
        setting = f"tpu.acceleratorType or {asked.settings.setting_of(zone)}"
        yield _in_zone("TPU type", wanted, offered, asked, zone, setting)


def software(asked: Asked) -> Iterator[Finding]:
    """Ask whether each of those zones has the runtime, or a classic node's its TensorFlow."""
    tpu = asked.settings.tpu
    if not is_enabled(asked, TPU_API):
        yield not_enabled("TPU software", TPU_API)
    elif asked.settings.architecture is Architecture.NODE:
        zone = asked.settings.zone
        offered = _offered(asked, zone, "v1", "tensorflowVersions", "version")
        wanted = tpu.tensorflow_version or ""
        yield _in_zone("TPU software", wanted, offered, asked, zone, "tpu.tensorflowVersion")
    else:
        wanted = tpu.runtime_version or ""
        for zone in asked.settings.tpu_zones:
            offered = _offered(asked, zone, "v2", "runtimeVersions", "version")
            yield _in_zone("TPU software", wanted, offered, asked, zone, "tpu.runtimeVersion")


def machine_type(asked: Asked) -> Iterator[Finding]:
    """Ask whether the VM's zone has its machine type."""
    wanted, zone = asked.settings.vm.machine_type, asked.settings.vm_zone
    if not is_enabled(asked, COMPUTE_API):
        yield not_enabled("machine type", COMPUTE_API)
        return
    try:
        found = asked.google.get(_MACHINE.format(asked.project, zone, wanted))
    except NotFound:
        cure = "Set vm.machineType to another one"
        yield Finding("machine type", WRONG, f"{zone} has no {wanted}", cure)
        return
    gib = int(found["memoryMb"]) / 1024
    needed = asked.settings.training.model_memory_gib
    if gib < needed:
        said = f"{wanted} has {gib:g} GiB, but training.modelMemoryGib is {needed:g}"
        yield Finding("machine type", WRONG, said, "Set vm.machineType to a larger one")
    else:
        yield Finding("machine type", OK, f"{zone} has {wanted} with {gib:g} GiB")


def _offered(asked: Asked, zone: str, version: str, collection: str, field: str) -> list[str]:
    url = _TPU.format(version, asked.project, zone, collection)
    try:
        return [str(one[field]) for one in asked.google.pages(url, collection, {"pageSize": 500})]
    except NotFound:
        return []
    except Forbidden as error:
        if _UNKNOWN not in str(error):
            raise
        return []


def _in_zone(
    about: str, wanted: str, offered: Iterable[str], asked: Asked, zone: str, setting: str
) -> Finding:
    known = list(offered)
    if wanted in known:
        return Finding(about, OK, f"{zone} has {wanted}")
    if not known:
        cure = f"Change {asked.settings.setting_of(zone)}"
        if AI in zone:
            cure = f"Switch AI zones on: `{SWITCH_ON.format(asked.project)}`"
        return Finding(about, WRONG, f"{zone} offers no TPUs", cure)
    said = f"{zone} has no {wanted}"
    return Finding(about, WRONG, said, f"Change {setting}. {nearest(wanted, known)}")
