"""Settings that only TPU VMs have: classic nodes refuse them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem, misplaced
from infra.settings.tpu import FULL_SCOPE, Architecture
from infra.settings.training import RunOn

_TAG = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_SCOPES = "https://www.googleapis.com/auth/"
_MAIL = "https://mail.google.com/"


def check_not_for_nodes(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse settings of TPU VMs for a classic node."""
    if settings.architecture is Architecture.VM:
        return
    tpu = settings.tpu
    disks = [
        disk.model_dump(mode="json", by_alias=True, exclude_unset=True) for disk in tpu.data_disks
    ]
    yield from misplaced(
        {
            "tpu.slices": tpu.slices if tpu.slices > 1 else None,
            "tpu.dataDisks": disks or None,
            "tpu.bootDiskGib": tpu.boot_disk_gib,
            "tpu.externalIps": tpu.external_ips,
            "tpu.tags": list(tpu.tags) or None,
            "tpu.scopes": list(tpu.scopes) if tpu.scopes != (FULL_SCOPE,) else None,
            "tpu.secureBoot": tpu.secure_boot,
            "tpu.autocheckpoint": tpu.autocheckpoint,
        },
        "is for architecture vm; a classic node has none",
        "Remove it, or use architecture vm",
    )


def check_tags(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that network tags follow Google's rules."""
    for number, tag in enumerate(settings.tpu.tags):
        if not _TAG.fullmatch(tag):
            yield Problem(
                f"tpu.tags[{number}]",
                tag,
                "is no network tag (at most 63 lower-case letters, digits and hyphens, a letter "
                "first, no hyphen last)",
                "Use one like tpu-workers",
            )


def check_scopes(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that scopes exist, and that a trainer on the TPU VM has the one that it needs."""
    scopes = settings.tpu.scopes
    for number, scope in enumerate(scopes):
        if not scope.startswith(_SCOPES) and scope != _MAIL:
            yield Problem(
                f"tpu.scopes[{number}]",
                scope,
                "is no access scope of Google's",
                f"Use URLs such as {FULL_SCOPE}",
            )
    if not scopes:
        yield Problem(
            "tpu.scopes",
            [],
            "are none, which Google takes for all",
            f"Leave it out for {FULL_SCOPE}",
        )
    elif settings.training.run_on is RunOn.TPU and FULL_SCOPE not in scopes:
        yield Problem(
            "tpu.scopes",
            list(scopes),
            "lack what the trainer needs, which runs on the TPU VM (training.runOn)",
            f"Add {FULL_SCOPE}: IAM, not the scope, decides what it may do",
        )


def check_jobs(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse jobs with an account of their own where a server as the machines' obeys them."""
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    serves = settings.tpu.slices > 1 or (runtime is not None and runtime.serves_grpc)
    if settings.jobs.apart and settings.training.run_on is RunOn.TPU and serves:
        yield Problem(
            "jobs.asRoot",
            False,
            "can't hold with training.runOn: tpu on this TPU: its gRPC does what any job wants, as "
            "root and as the machines' account",
            "Set training.runOn: vm, use one slice and no -pod runtime, or set jobs.asRoot: true",
        )


def warn_about_slices(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn that the trainer uses the first slice: TensorFlow's TPUStrategy drives one TPU."""
    if settings.tpu.slices > 1:
        first, *_ = context.names.tpus(settings.tpu.slices)
        yield (
            f"tpu.slices is {settings.tpu.slices}, and TensorFlow's TPUStrategy drives one TPU: "
            f"the trainer of this project uses {first}. The output tpu_endpoints and the metadata "
            "tpu-names name all slices, for programs that use several."
        )
