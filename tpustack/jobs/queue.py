"""Where a stack's jobs are queued, and whether a machine with a TPU will run them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from tpu_agent.jobs.queue import ON_EACH_HOST, Queue
from tpu_core.bucket import Bucket
from tpu_core.google import GoogleError
from tpu_core.lease import DURATION
from tpustack.cloud.google import Google
from tpustack.console import plain
from tpustack.errors import TpustackError, UsageError

if TYPE_CHECKING:
    from infra.settings import StackSettings


_SCHEME = "gs://"
_NEEDS = "roles/storage.objectUser on it"


def open_queue(
    stack: str | None, bucket: str | None, *, submits: bool = False, managed: bool = False
) -> Queue:
    """Return the queue of a stack or a bucket.

    Args:
        stack: a stack's name.
        bucket: gs://BUCKET.
        submits: whether the stack must be one that runs jobs.
        managed: whether it must be one whose jobs Vertex AI runs.

    Raises:
        UsageError: neither or both are given, or the stack runs no jobs.
    """
    if (stack is None) == (bucket is None):
        raise UsageError("give either --stack NAME or --bucket gs://BUCKET")
    if managed and stack is None:
        raise UsageError("--on vertex needs --stack NAME, whose account and network the job gets")
    name = (
        _of_stack(stack, submits=submits, managed=managed)
        if stack is not None
        else bucket_of(str(bucket))
    )
    return Queue(Bucket(name, Google().exchange), lambda line: click.echo(plain(line), err=True))


@contextlib.contextmanager
def explained(queue: Queue) -> Iterator[None]:
    """Turn what the bucket refuses in this block into a message that says what to do."""
    try:
        yield
    except GoogleError as error:
        place = f"{_SCHEME}{queue.store.bucket}"
        if error.status == 404:
            raise UsageError(
                f"there is no bucket {place}: the stack is down, or it is another bucket. "
                "`pulumi up` makes a stack's bucket. Nothing was changed"
            ) from None
        if error.status in (401, 403):
            raise TpustackError(
                f"you may not use {place}: ask for {_NEEDS}. Google's answer: {error}"
            ) from None
        raise TpustackError(str(error)) from None


def why_without_tpu(stack: str | None, framework: str) -> str | None:
    """Return why a framework will find no TPU on a stack's machine; None if it may find one.

    Raises:
        UsageError: the TPU has several hosts, and the framework can't use them as they are.
    """
    from infra.catalog import Catalog
    from infra.settings.machines import RunOn
    from tpustack.stacks import load

    if framework == "none" or stack is None:
        return None
    settings, catalog = load(stack), Catalog()
    accelerator = catalog.accelerator(settings.tpu.accelerator_type)
    runtime = catalog.runtime(settings.tpu.runtime_version or "")
    if accelerator and accelerator.hosts > 1:
        serves_grpc = runtime is not None and runtime.serves_grpc
        if cure := _cure_of_slice(settings, framework, serves_grpc=serves_grpc):
            raise UsageError(
                f"--framework {framework}: the {accelerator.name} of the stack {stack} has "
                f"{accelerator.hosts} hosts. {cure} (docs/frameworks.md)"
            )
    if framework not in ON_EACH_HOST:
        return None
    if settings.training.run_on is RunOn.VM:
        return (
            f"training.runOn: vm for the stack {stack}: {framework} reaches only a TPU of its own "
            "machine, and finds a CPU there. `training.runOn: tpu` gives it the TPU"
        )
    if runtime is None or not runtime.serves_grpc:
        return None
    return (
        f"tpu.runtimeVersion: {runtime.name} for the stack {stack} serves its chips to TensorFlow "
        f"by gRPC, and {framework} finds a CPU there. A runtime without -pod gives it the TPU"
    )


def _cure_of_slice(settings: StackSettings, framework: str, *, serves_grpc: bool) -> str | None:
    """Return what a framework needs on a TPU with several hosts; None if it has that."""
    from infra.settings.machines import RunOn

    on_vm = settings.training.run_on is RunOn.VM
    if framework not in ON_EACH_HOST:
        if on_vm or serves_grpc:
            return None
        return (
            f"{framework} drives them all from one, by the gRPC of a -pod runtime, which "
            "tpu.runtimeVersion is not: set one"
        )
    if on_vm or serves_grpc:
        return (
            f"{framework} needs a process on each, with its chips: set training.runOn: tpu and a "
            "tpu.runtimeVersion without -pod"
        )
    if settings.tpu.slices > 1:
        return (
            f"{framework} needs a process on each, and a job runs on those of one slice, not of "
            f"{settings.tpu.slices}: set tpu.slices: 1"
        )
    return None


def _of_stack(stack: str, *, submits: bool, managed: bool) -> str:
    from infra.names import names_of
    from tpustack.stacks import load, require_file

    require_file(stack)
    settings = load(stack)
    if managed and settings.jobs.vertex is None:
        raise UsageError(
            f"jobs.vertex: (not set) for the stack {stack}, so that Vertex AI has no account to "
            "run jobs as. Set `tpu-stack:jobs: {vertex: {}}` in its file and run "
            f"`pulumi up --stack {stack}`"
        )
    if submits and not managed and not settings.jobs.enabled:
        raise UsageError(
            f"jobs.enabled: (not set) for the stack {stack}, whose machine runs one training. Set "
            f"`tpu-stack:jobs: {{enabled: true}}` in its file and run `pulumi up --stack {stack}`"
        )
    return names_of(settings, stack).bucket


def bucket_of(url: str) -> str:
    """Return the name in gs://BUCKET. Raises UsageError for anything else."""
    name = url.removeprefix(_SCHEME).rstrip("/")
    if not url.startswith(_SCHEME) or not name or "/" in name:
        raise UsageError(f"--bucket: {url} is no bucket. Write it like gs://BUCKET")
    return name


RUNNERS = "runners/"
"""The folder of the leases, one a TPU."""


def why_waiting(queue: Queue) -> str | None:
    """Return that no machine looks after the queue; None if one does. Raises GoogleError."""
    ages = [item.age for item in queue.store.items(RUNNERS)]
    if any(age <= DURATION for age in ages):
        return None
    seen = f"the last one was seen {min(ages):.0f} s ago" if ages else "none has ever done so"
    return (
        f"no machine runs the jobs of gs://{queue.store.bucket} now ({seen}). The job waits until "
        "one does: `pulumi up` starts the stack's"
    )
