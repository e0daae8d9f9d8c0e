"""A stack's queue of jobs, and whether a machine with a TPU will run them.

The queue itself is `tpu_agent.jobs.queue.Queue`, which the runner reads with the same code. This
module finds its bucket, explains what the bucket refuses, and warns before a job waits in vain.
`tpu_infra` and the engine take a while to load, so functions import them: with --bucket, `job list`
needs neither.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpu_agent.jobs.queue import NEEDS_ROOT, ON_EACH_HOST, Queue
from tpu_core import lease
from tpu_core.bucket import Bucket
from tpu_core.google import GoogleError
from tpustack import console
from tpustack.cloud.google import Google, Nodes
from tpustack.engine import named
from tpustack.errors import Denied, Missing, TpustackError, UsageError

if TYPE_CHECKING:
    from tpu_infra.settings import StackSettings

RUNNERS = "runners/"
"""The folder of the leases, one for each TPU: see `tpu_core.paths.lease`."""
_SCHEME = "gs://"
_NEW = "it has no bucket yet"


def stack_of(stack: str | None, bucket: str | None) -> str | None:
    """Return the stack whose queue the options name; None for a bucket's.

    Without options it is Pulumi's selected stack. Raises UsageError for both options at once.
    """
    if stack is not None and bucket is not None:
        raise UsageError(f"--stack {stack} and --bucket {bucket} name two queues. Use one of them")
    return named(None) if bucket is None and stack is None else stack


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
        UsageError: the stack runs no jobs, or the bucket's name is wrong.
    """
    if managed and stack is None:
        raise UsageError("--on vertex needs --stack NAME, whose account and network the job gets")
    if stack is None:
        name = bucket_of(str(bucket))
    else:
        name = _bucket_of_stack(stack, submits=submits, managed=managed)
    # Damaged records are named on standard error, so that --json stays JSON.
    return queue_of(name, Google(), console.say)


def queue_of(bucket: str, google: Google, say: Callable[[str], None]) -> Queue:
    """Return the queue of a bucket; `say` hears of damaged records, which are left out."""
    return Queue(Bucket(bucket, google.exchange), say)


def _bucket_of_stack(stack: str, *, submits: bool, managed: bool) -> str:
    from tpu_infra.names import names_of
    from tpustack import stacks

    settings = stacks.load(stack)
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
        raise UsageError(f"--bucket: {url} is not a bucket. Write it like gs://BUCKET")
    return name


@contextlib.contextmanager
def explained(queue: Queue) -> Iterator[None]:
    """Turn what the bucket refuses in this block into a message that says what to do."""
    try:
        yield
    except GoogleError as error:
        place = f"{_SCHEME}{queue.store.bucket}"
        if error.status == 404:
            raise Missing(
                f"there is no bucket {place}: the stack is down, or it is another bucket. "
                "`pulumi up` makes a stack's bucket. Nothing was changed"
            ) from None
        if error.status in (401, 403):
            raise Denied(
                f"you may not use {place}: ask for roles/storage.objectUser on it. Google's "
                f"answer: {error}"
            ) from None
        raise TpustackError(str(error)) from None


def why_waiting(queue: Queue) -> str | None:
    """Return that no machine looks after the queue; None if one does. Raises GoogleError.

    A runner renews its TPU's lease, so the age of the youngest lease is that of the last sign of
    life. The bucket's clock measures it, not this computer's.
    """
    ages = [item.age for item in queue.store.items(RUNNERS)]
    if any(age <= lease.DURATION for age in ages):
        return None
    seen = f"the last one was seen {min(ages):.0f} s ago" if ages else "none has ever done so"
    return (
        f"no machine runs the jobs of gs://{queue.store.bucket} now ({seen}). The job waits until "
        "one does: `pulumi up` starts the stack's"
    )


def why_without_tpu(stack: str | None, framework: str) -> str | None:
    """Return why a framework will find no TPU on a stack's machine; None if it may find one.

    Raises:
        UsageError: the TPU has several hosts, and the framework can't use them as they are.
    """
    if framework == "none" or stack is None:
        return None
    from tpu_infra.catalog import Catalog
    from tpu_infra.settings.machines import RunOn
    from tpustack.stacks import load

    settings, catalog = load(stack), Catalog()
    accelerator = catalog.accelerator(settings.tpu.accelerator_type, settings.tpu.topology)
    runtime = catalog.runtime(settings.tpu.runtime_version or "")
    # A -pod runtime holds the chips for its gRPC server: other processes of the host find none.
    serves_grpc = runtime is not None and runtime.serves_grpc
    on_vm = settings.training.run_on is RunOn.VM
    installs = bool(settings.training.tensorflow_version)
    if settings.is_compute and framework == "tensorflow" and not installs:
        raise UsageError(
            f"--framework tensorflow: training.tensorflowVersion is not set for the stack {stack}, "
            "whose machine of Compute Engine has no TensorFlow without it"
        )
    if accelerator and accelerator.hosts > 1:
        slices = settings.tpu.slices
        cure = _cure_of_slice(framework, slices, on_vm=on_vm, serves_grpc=serves_grpc)
        if cure and settings.is_compute:
            cure = f"{framework} drives only the chips of one there: use jax or pytorch"
        if cure:
            raise UsageError(
                f"--framework {framework}: the {accelerator.name} of the stack {stack} has "
                f"{accelerator.hosts} hosts. {cure} (docs/jobs.md#several-hosts)"
            )
    if framework not in ON_EACH_HOST:
        return None
    if on_vm:
        return (
            f"training.runOn: vm for the stack {stack}: {framework} reaches only a TPU of its own "
            "machine, and finds a CPU there. `training.runOn: tpu` gives it the TPU"
        )
    if not serves_grpc:
        return None
    return (
        f"tpu.runtimeVersion: {settings.tpu.runtime_version} for the stack {stack} serves its "
        f"chips to TensorFlow by gRPC, and {framework} finds a CPU there. A runtime without -pod "
        "gives it the TPU"
    )


def require_root(stack: str | None, image: str | None) -> None:
    """Refuse an image for jobs of a stack's machine that may not be root there.

    With --bucket the machine itself refuses it. Raises UsageError.
    """
    if not image or stack is None:
        return
    from tpustack.stacks import load

    if not load(stack).jobs.as_root:
        up = f"pulumi up --stack {stack}"
        raise UsageError(NEEDS_ROOT.format(f"--image: {image}", f"the stack {stack}", up))


def _cure_of_slice(framework: str, slices: int, *, on_vm: bool, serves_grpc: bool) -> str | None:
    """Return what a framework needs on a TPU with several hosts; None if it has that."""
    if framework not in ON_EACH_HOST:
        if on_vm or serves_grpc:
            return None
        return (
            f"{framework} drives them all from one, by the gRPC of a -pod runtime, which "
            "tpu.runtimeVersion is not: set one"
        )
    needs = f"{framework} needs a process on each"
    if on_vm or serves_grpc:
        runtime = "a tpu.runtimeVersion without -pod"
        return f"{needs}, with its chips: set training.runOn: tpu and {runtime}"
    if slices > 1:
        return f"{needs}, and a job runs on those of one slice, not of {slices}: set tpu.slices: 1"
    return None


def require_on_demand(
    stack: str | None, idle_stop: int | None, *, managed: bool
) -> tuple[str, "StackSettings"]:
    """Return name and settings of the stack that is brought up for a job, or taken down after it.

    Args:
        stack: its name.
        idle_stop: after how many minutes without a job its TPU is taken down; None: as before.
        managed: whether Vertex AI runs the job.

    Raises:
        UsageError: the stack can't do it, or none is named.
    """
    from tpustack import stacks

    if managed:
        raise UsageError("--create and --idle-stop are for stacks: Vertex AI makes its own TPU")
    if stack is None:
        raise UsageError("--create and --idle-stop need --stack NAME")
    settings = stacks.load(stack)
    if idle_stop is not None and settings.is_compute:
        raise UsageError(
            "--idle-stop: with architecture compute nothing ends an idle TPU. Leave it out; "
            "limits.timeToLiveHours ends the TPU"
        )
    # Without limits or recovery, the machine's account has no role to delete TPUs.
    if idle_stop is not None and not settings.keeps_limits:
        raise UsageError(
            f"--idle-stop: the machine of the stack {stack} may not take its TPU down. Set "
            "limits.idleMinutes or limits.timeToLiveHours in its file, which gives it the role, "
            f"and run `pulumi up --stack {stack}`"
        )
    return stack, settings


def bring_up(
    queue: Queue, stack: str, settings: "StackSettings", say: Callable[[str], None]
) -> None:
    """Run `pulumi up` for a stack that can't run a job now. Raises TpustackError.

    The engine runs before the job is queued: from then on this computer may be turned off.
    """
    why = _why_down(queue, stack, settings)
    if why is None:
        return
    from tpustack.engine.backend import users_own

    say(f"pulumi up for the stack {stack}: {why}")
    own = users_own()
    engine = own.select(stack) if why == _NEW else own.stack(stack)
    if why != _NEW:
        # What a limit has taken down is still in the state, and `up` alone would not create it.
        engine.refresh(say)
    engine.up(say)


def _why_down(queue: Queue, stack: str, settings: "StackSettings") -> str | None:
    """Return why a stack can't run a job now; None if it can."""
    from tpu_infra.names import names_of

    try:
        if why := why_waiting(queue):
            return why
    except GoogleError as error:
        if error.status != 404:
            raise
        return _NEW
    nodes = Nodes(Google(), settings.project, compute=settings.is_compute)
    for name in names_of(settings, stack).tpus(settings.tpu.slices):
        if nodes.find(settings.tpu_zones, name) is None:
            return f"its TPU {name} is gone"
    return None
