"""The VM."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context, nearest
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.training import RunOn

_IMAGE = re.compile(r"[a-z0-9.:-]+/[a-z0-9-]+")


def check_machine_type(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """The machine type exists and the model fits into its memory."""
    types = context.catalog.machine_types
    wanted = settings.vm.machine_type
    machine = types.get(wanted)
    needed = settings.training.model_memory_gib
    if machine is None:
        yield Problem(
            "vm.machineType", wanted, "is no machine type in the catalog", nearest(wanted, types)
        )
    elif settings.training.run_on is RunOn.VM and machine.memory_gib < needed:
        enough = [name for name, other in types.items() if other.memory_gib >= needed]
        enough.sort(key=lambda name: (types[name].memory_gib, types[name].vcpus))
        cure = f"Use {' or '.join(enough[:2])}" if enough else "No machine type is large enough"
        yield Problem(
            "vm.machineType",
            wanted,
            f"has {machine.memory_gib:g} GiB of memory, but the model needs {needed:g} GiB "
            "(training.modelMemoryGib)",
            cure,
        )


def check_image(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """The image is named by its family, so that a new VM gets the newest one."""
    if not _IMAGE.fullmatch(settings.vm.image):
        yield Problem(
            "vm.image",
            settings.vm.image,
            "is not PROJECT/FAMILY",
            "Use one like debian-cloud/debian-12",
        )
