"""The VM and the bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context, nearest
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem
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


def check_bucket(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """The bucket is in the TPU's region, and its settings agree with each other."""
    bucket = settings.bucket
    if bucket.location and bucket.location.lower() != settings.region:
        yield Problem(
            "bucket.location",
            bucket.location,
            f"is not the TPU's region: reading across regions is slow and costs egress "
            f"(the zone is {settings.zone})",
            f"Use {settings.region}, or leave it out",
        )
    if not bucket.create:
        yield from _check_given_bucket(settings)
    elif bucket.protect and bucket.force_destroy:
        yield Problem(
            "bucket.forceDestroy",
            True,
            "contradicts bucket.protect: true",
            "Set one of the two to false",
        )


def _check_given_bucket(settings: StackSettings) -> Iterator[Problem]:
    """A bucket that is not the stack's has a name, and nothing that only its owner decides."""
    bucket = settings.bucket
    if bucket.name is None:
        yield Problem(
            "bucket.name",
            UNSET,
            "is required with bucket.create: false",
            "Set the name of the bucket to use",
        )
    for name, value in (
        ("forceDestroy", bucket.force_destroy),
        ("protect", bucket.protect),
        ("versioning", bucket.versioning),
    ):
        if value:
            yield Problem(
                f"bucket.{name}",
                value,
                "is of a bucket that the stack makes, but bucket.create is false",
                "Remove one of the two",
            )
