"""What the VM and the TPU have in common: their metadata, start-up scripts and timeouts."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import pulumi

from tpu_agent.bundle import lock_of, program, startup_script
from tpu_core.contract import AS_ROOT, NO_LOCK, TRAINING_PREFIX, Metadata
from tpu_infra.catalog.entries import JAX_PACKAGE, TPU_PACKAGE, VM_PACKAGE
from tpu_infra.checks import CheckedStack
from tpu_infra.components.bucket import Bucket
from tpu_infra.components.identity import Identity
from tpu_infra.components.network import Network
from tpu_infra.components.services import ProjectServices
from tpu_infra.cost import without_price
from tpu_infra.deployer import form_of
from tpu_infra.settings.machines import Backend, RunOn, TimeoutSettings

# The task that an idle VM's start-up script would have.
_NOTHING, _JOBS, _TRAIN, _TRAIN_AND_WATCH = "nothing", "run jobs", "train", "train and watch"

# A machine of Compute Engine with a TPU has what is the default of a VM.
_LOGIN = {"enable-oslogin": "TRUE", "serial-port-logging-enable": "true"}


@dataclass(frozen=True)
class Surroundings:
    """What VM and TPU are declared from: the checked stack, and the resources that they use.

    Attributes:
        identity: whom the machine acts as. Where jobs have an account of their own, the TPU acts as
            that: anyone who drives a TPU by gRPC acts as its account.
    """

    stack: CheckedStack
    services: ProjectServices
    network: Network
    identity: Identity
    bucket: Bucket

    @property
    def startup(self) -> list[pulumi.Resource]:
        """What a start-up script uses: the way to packages, and the bucket's objects."""
        return [*self.network.egress, *self.bucket.objects]

    @property
    def tags(self) -> list[str]:
        """The network tags of every machine: the stack's own first."""
        return [self.stack.names.network, *self.stack.settings.network.tags]


def vm_metadata(stack: CheckedStack, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
    """Return the VM's metadata without its start-up script."""
    vm, form = stack.settings.vm, form_of(stack.settings)
    # On Compute Engine it has the agent and nothing else: its TPU runs the trainer or the jobs.
    does = {
        **_about(stack, bucket),
        **_messages(stack),
        Metadata.TPU_FORM: form,
        Metadata.AGENT: program(),
        Metadata.LIMITS: _limits(stack),
    }
    return {
        **(does if form else _job(stack, bucket, VM_PACKAGE) | _trainer(stack, RunOn.VM)),
        "enable-oslogin": "TRUE" if vm.os_login else "FALSE",
        # The serial port can be read as long as the VM runs; Cloud Logging keeps it for 30 days
        # (cloud.google.com/compute/docs/troubleshooting/viewing-serial-port-output, 2026-11).
        "serial-port-logging-enable": "true" if vm.serial_port_logging else "false",
        **({Metadata.OPS_AGENT: "true"} if vm.ops_agent else {}),
    }


def vm_script(stack: CheckedStack) -> str | None:
    """Return the VM's start-up script; None unless it runs the trainer, or recreates the TPU."""
    acts = stack.settings.is_compute or not stack.settings.trains_on_tpu
    return startup_script("vm.sh") if acts else None


def vm_task(stack: CheckedStack) -> str:
    """Return what the VM's start-up script does; another task replaces the VM.

    The script itself differs between releases, which is no reason to replace a VM that trains. It
    runs only at boot, so that a VM without it can't take a task up later.
    """
    settings = stack.settings
    if settings.trains_on_tpu:
        return _NOTHING
    if settings.jobs.enabled:
        return _JOBS
    return _TRAIN_AND_WATCH if settings.keeps_limits else _TRAIN


def tpu_metadata(stack: CheckedStack, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
    """Return a TPU host's metadata; less if its runtime serves gRPC and the VM trains."""
    settings = stack.settings
    if settings.is_compute:
        on_jax = stack.backend is Backend.JAX
        return {
            **_job(stack, bucket, JAX_PACKAGE if on_jax else TPU_PACKAGE),
            **_trainer(stack, RunOn.TPU),
            **({Metadata.BACKEND: Backend.JAX.value} if on_jax else {}),
            **_LOGIN,
            Metadata.IS_TPU: "true",
            Metadata.SERVES_GRPC: "false",
            Metadata.PLUGGABLE: "false",
            Metadata.RUNS_TRAINING: "true",
            Metadata.STARTUP_SCRIPT: startup_script("tpu_vm.sh"),
        }
    runtime = stack.context.catalog.runtime(settings.tpu.runtime_version or "")
    if runtime is None:
        return {}  # A classic node has no metadata.
    trains = settings.trains_on_tpu
    job = _job(stack, bucket, TPU_PACKAGE) | _trainer(stack, RunOn.TPU)
    if runtime.serves_grpc and not trains:
        job = {key: job[key] for key in (Metadata.TPU_NAME, Metadata.BUCKET_URL)}
    return {
        **job,
        Metadata.SERVES_GRPC: "true" if runtime.serves_grpc else "false",
        Metadata.PLUGGABLE: "true" if runtime.pluggable else "false",
        Metadata.RUNS_TRAINING: "true" if trains else "false",
        Metadata.STARTUP_SCRIPT: startup_script("tpu_vm.sh"),
    }


def properties_of_job(metadata: Iterable[str]) -> list[str]:
    """Return what replaces a machine if it changes: a start-up script runs only at boot."""
    keys = sorted({Metadata.JOBS, *(key for key in metadata if key.startswith(TRAINING_PREFIX))})
    return [f'metadata["{key}"]' for key in keys]


def name_by_content(prefix: str, content: object) -> pulumi.Output[str]:
    """Return a name with a digest of what it names, which never changes: another gets another name.

    So an update that was killed while Google made it finds it again.
    """
    return pulumi.Output.json_dumps(content, sort_keys=True).apply(
        lambda text: f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )


def custom_timeouts(timeouts: TimeoutSettings) -> pulumi.CustomTimeouts | None:
    """Return the timeouts for the engine; None if none is set."""
    given = {
        "create": timeouts.create_minutes,
        "update": timeouts.update_minutes,
        "delete": timeouts.delete_minutes,
    }
    spans = {verb: f"{minutes:g}m" for verb, minutes in given.items() if minutes is not None}
    return pulumi.CustomTimeouts(**spans) if spans else None


def _job(stack: CheckedStack, bucket: Bucket, package: str) -> dict[str, pulumi.Input[str]]:
    """Return the metadata of a machine that installs TensorFlow as `package`.

    The start-up script `common.sh` reads each key.
    """
    tpus = stack.names.tpus(stack.settings.tpu.slices)
    return {
        **_about(stack, bucket),
        **({Metadata.TPU_NAMES: ",".join(tpus)} if len(tpus) > 1 else {}),
        **({Metadata.WHEELS: stack.wheels} if stack.wheels else {}),
        Metadata.WHEEL: bucket.wheel_url,
        Metadata.WHEEL_SHA256: bucket.wheel_sha256,
        Metadata.ARGUMENTS: json.dumps(stack.arguments),
        Metadata.TENSORFLOW: stack.trainer_tensorflow,
        Metadata.TENSORFLOW_LOCK: lock_of(package, stack.trainer_tensorflow) or NO_LOCK,
        **_agent(stack),
    }


def _about(stack: CheckedStack, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
    """Return what every agent knows of the TPU and of where its records are."""
    return {
        Metadata.TPU_NAME: stack.names.tpus(stack.settings.tpu.slices)[0],
        Metadata.TPU_ZONE: stack.settings.zone,
        Metadata.TPU_PROJECT: stack.settings.project,
        Metadata.BUCKET_URL: bucket.url,
        Metadata.JOB: stack.job,
    }


def _trainer(stack: CheckedStack, machine: RunOn) -> dict[str, pulumi.Input[str]]:
    """Return what only the machine that runs the trainer gets: its agent, what the stack costs.

    Two agents would both take the TPU down, or recreate it.
    """
    if stack.settings.training.run_on is not machine:
        return {}
    note = f"{without_price(stack.settings, stack.context.stack)}."
    return {Metadata.COST_NOTE: note, Metadata.AGENT: program()}


def _agent(stack: CheckedStack) -> dict[str, pulumi.Input[str]]:
    """Return what the agent does besides running the trainer."""
    settings, found = stack.settings, dict[str, pulumi.Input[str]]()
    # A machine of Compute Engine that is the TPU can't recreate itself.
    if settings.keeps_limits and not settings.is_compute:
        found[Metadata.LIMITS] = _limits(stack)
    if settings.jobs.enabled:
        found[Metadata.JOBS] = AS_ROOT if settings.jobs.as_root else stack.names.jobs_email
    found |= _messages(stack)
    if len(settings.tpu_zones) > 1:
        found[Metadata.TPU_ZONES] = ",".join(settings.tpu_zones)
    return found


def _messages(stack: CheckedStack) -> dict[str, pulumi.Input[str]]:
    log = json.dumps({"log": stack.names.messages_log})
    return {Metadata.MESSAGES: log} if stack.settings.messages.any else {}


def _limits(stack: CheckedStack) -> str:
    settings, limits = stack.settings, stack.settings.limits
    # Compute Engine knows no queue.
    recovery, queue = settings.recovery, None if settings.is_compute else settings.tpu.queue
    budgets = {"preemption": recovery.preemptions_per_day, "failure": recovery.failures_per_day}
    limited = {
        "tpus": stack.names.tpus(settings.tpu.slices),
        "timeToLiveHours": limits.time_to_live_hours,
        "idleMinutes": limits.idle_minutes,
        # A group would restart a VM that turns itself off when the TPU's time is up.
        "turnOff": (settings.is_compute or not settings.trains_on_tpu)
        and settings.vm.instance_group is None,
        "recovery": budgets if recovery.enabled else None,
        # The TPUs of a request in the queue are lost and recreated together.
        "request": stack.names.tpu if recovery.enabled and queue else None,
        "zoneMinutes": queue.minutes_in_zone if queue else None,
    }
    return json.dumps({key: value for key, value in limited.items() if value is not None})
