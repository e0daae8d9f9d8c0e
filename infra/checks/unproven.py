"""Warnings of what only this project's word, or nobody's, stands behind (docs/tpu.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from infra.catalog.model import Accelerator, Proof, Runtime
from infra.checks.context import Context, nearest
from infra.settings import StackSettings
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn

_TPU = "https://tpu.googleapis.com/v2"
_COMPUTE = "https://compute.googleapis.com/compute/v1"
_LIVE = "`tpustack check --live` asks Google"


@dataclass(frozen=True)
class Unlisted:
    """What the catalog does not know, so that only Google can say whether it exists.

    Attributes:
        setting: the setting that names it.
        value: what it names.
        known: what the catalog knows of its kind.
        url: where Google describes it, if it exists.
    """

    setting: str
    value: str
    known: tuple[str, ...]
    url: str


def unlisted(settings: StackSettings, context: Context) -> Iterator[Unlisted]:
    """Yield what the catalog does not know."""
    catalog, zone = context.catalog, settings.zone
    tpus = f"{_TPU}/projects/{settings.project}/locations/{zone}"
    accelerator = catalog.accelerator(settings.tpu.accelerator_type)
    if accelerator:
        url = f"{tpus}/acceleratorTypes/{accelerator.name}"
        if not accelerator.listed:
            known = tuple(catalog.accelerators)
            yield Unlisted("tpu.acceleratorType", accelerator.name, known, url)
        known = tuple(f"{accelerator.name} in {other}" for other in accelerator.zones)
        for other in settings.tpu_zones:
            if other not in accelerator.zones:
                setting = settings.setting_of(other)
                there = url.replace(f"/{zone}/", f"/{other}/")
                yield Unlisted(setting, f"{accelerator.name} in {other}", known, there)
    runtime = catalog.runtime(settings.tpu.runtime_version or "")
    if runtime and not runtime.listed:
        url = f"{tpus}/runtimeVersions/{runtime.name}"
        yield Unlisted("tpu.runtimeVersion", runtime.name, tuple(catalog.runtimes), url)
    machine = settings.vm.machine_type
    if machine not in catalog.machine_types:
        place = f"projects/{settings.project}/zones/{settings.vm_zone}"
        url = f"{_COMPUTE}/{place}/machineTypes/{machine}"
        yield Unlisted("vm.machineType", machine, tuple(catalog.machine_types), url)


def warn_about_unlisted(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of what the catalog does not know."""
    for one in unlisted(settings, context):
        yield (
            f"{one.setting}: the catalog does not know {one.value}; {_LIVE}. If it is mistyped: "
            f"{nearest(one.value, one.known)}."
        )


def warn_about_unproven(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn, in one short line, of all parts of the stack's TPU VM that nobody has shown to work."""
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.architecture is not Architecture.VM or accelerator is None or runtime is None:
        return
    found = [*_unproven(settings, accelerator, runtime)]
    if found:
        yield f"not proven on a real TPU (docs/tpu.md#what-stays-unproven): {'; '.join(found)}"


def _unproven(settings: StackSettings, accelerator: Accelerator, runtime: Runtime) -> Iterator[str]:
    if runtime.listed and runtime.proof is Proof.INFERRED:
        yield f"that {runtime.name} exists ({_LIVE})"
    if runtime.broken:
        yield f"the image of {runtime.name}, whose TensorFlow crashes on import"
    if accelerator.doubt:
        yield accelerator.doubt
    if settings.training.run_on is not RunOn.VM:
        return
    worker = "" if runtime.serves_grpc else " through the tensorflow-tpu wheel's worker"
    yield f"a VM that drives it by gRPC{worker}; Google documents training.runOn: tpu"
