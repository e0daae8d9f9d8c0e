"""Checks of the TPU's software and of the TensorFlow that drives it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.catalog.model import Runtime
from infra.checks.context import Context, nearest
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc)\d+)?")


def check_runtime(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that a TPU VM's runtime exists, suits the TPU and does what the stack needs."""
    if settings.architecture is not Architecture.VM:
        return
    name = settings.tpu.runtime_version
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    suitable = [
        runtime.name
        for runtime in context.catalog.runtimes.values()
        if runtime.tensorflow and (accelerator is None or accelerator.family in runtime.families)
    ]
    if name is None:
        yield Problem(
            "tpu.runtimeVersion",
            UNSET,
            "is required for architecture vm",
            f"Set one, for example {' or '.join(suitable[:2])}",
        )
        return
    runtime = context.catalog.runtime(name)
    if runtime is None:
        yield Problem(
            "tpu.runtimeVersion",
            name,
            "is no runtime that Google names",
            nearest(name, context.catalog.runtimes),
        )
        return
    if accelerator and accelerator.family not in _families(runtime, context):
        yield Problem(
            "tpu.runtimeVersion",
            name,
            f"does not run on {accelerator.name} (it is for "
            f"{', '.join(_families(runtime, context))})",
            nearest(name, suitable),
        )
    if runtime.serves_grpc:
        return
    if settings.training.run_on is RunOn.TPU:
        # Jobs of JAX and PyTorch run on each host, and take such runtimes alone.
        if accelerator and accelerator.hosts > 1 and not settings.jobs.enabled:
            yield Problem(
                "tpu.runtimeVersion",
                name,
                f"serves no gRPC, so that a trainer on worker 0 cannot use the other "
                f"{accelerator.hosts - 1} hosts of a {accelerator.name}",
                "Use a -pod runtime, or jobs.enabled for programs that run on each host",
            )
        return
    # The TPU VM's start-up script must serve gRPC for the VM. See startup/tpu_vm.sh.
    if accelerator and not accelerator.grpc_worker:
        yield Problem(
            "tpu.runtimeVersion",
            name,
            f"serves no gRPC, and TensorFlow's worker script does not know {accelerator.family}",
            "Use a -pod runtime, or training.runOn: tpu",
        )


def _families(runtime: Runtime, context: Context) -> tuple[str, ...]:
    """Return the generations that a runtime runs on; for one not listed, those it may run on."""
    if runtime.listed:
        return runtime.families
    alike = (r for r in context.catalog.runtimes.values() if r.pluggable == runtime.pluggable)
    return tuple(sorted({family for other in alike for family in other.families}))


def check_node_version(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that Google still serves a classic node's TensorFlow."""
    if settings.architecture is not Architecture.NODE:
        return
    known = context.catalog.node_versions
    served = [
        version
        for version, entry in known.items()
        if entry.ended is None and context.catalog.packages.runs_with(version)
    ]
    wanted = settings.tpu.tensorflow_version
    if wanted is None:
        yield Problem(
            "tpu.tensorflowVersion",
            UNSET,
            "is required for architecture node",
            f"Set one, for example {served[0]}",
        )
    elif wanted not in known:
        yield Problem(
            "tpu.tensorflowVersion",
            wanted,
            "is no version of classic TPU nodes",
            nearest(wanted, served),
        )
    elif ended := known[wanted].ended:
        yield Problem(
            "tpu.tensorflowVersion",
            wanted,
            f"is no longer served on TPU nodes since {ended}",
            nearest(wanted, served),
        )


def check_trainer_version(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the trainer's TensorFlow is known."""
    wanted = settings.training.tensorflow_version
    if wanted and not is_version(wanted):
        yield Problem("training.tensorflowVersion", wanted, "is no version", "Use one like 2.19.1")
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if not wanted and runtime and runtime.tensorflow is None:
        yield Problem(
            "training.tensorflowVersion",
            UNSET,
            f"is required: the runtime {runtime.name} has no TensorFlow of its own",
            "Set the version to install, for example 2.19.1",
        )


def is_version(text: str) -> bool:
    """Return whether a text is a version of TensorFlow."""
    return bool(_VERSION.fullmatch(text))


def is_served(settings: StackSettings, context: Context) -> bool:
    """Return whether nothing is wrong with a classic node's own version."""
    return not any(check_node_version(settings, context))


def trainer_tensorflow(settings: StackSettings, context: Context) -> str | None:
    """Return the trainer's TensorFlow: the one that is set, else the TPU's own."""
    return settings.training.tensorflow_version or tpu_tensorflow(settings, context)


def tpu_software(settings: StackSettings) -> str | None:
    """Return the runtime of a TPU VM, or the TensorFlow version of a classic node."""
    node = settings.architecture is Architecture.NODE
    return settings.tpu.tensorflow_version if node else settings.tpu.runtime_version


def tpu_tensorflow(settings: StackSettings, context: Context) -> str | None:
    """Return the TensorFlow that the TPU runs; None for a runtime without one."""
    if settings.architecture is Architecture.NODE:
        return settings.tpu.tensorflow_version
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    return runtime.tensorflow if runtime else None


def warn_about_versions(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn if trainer and TPU run different releases of TensorFlow (tensorflow#40622).

    Patch releases have the same operations, so that they go together.
    """
    own, wanted = tpu_tensorflow(settings, context), settings.training.tensorflow_version
    if own and wanted and own.split(".")[:2] != wanted.split(".")[:2]:
        yield (
            f"training.tensorflowVersion is {wanted}, but the TPU runs TensorFlow {own}. They must "
            'agree on a real TPU, else operations fail as "not registered". Leave '
            "training.tensorflowVersion out to get the TPU's own."
        )
