"""What the VM and the TPU have in common: arguments, metadata, start-up scripts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pulumi

from infra.checks.context import Context
from infra.cost.parts import of_stack
from infra.cost.running import COST_NOTE
from infra.names import Names
from infra.settings import StackSettings
from infra.settings.timeouts import Timeouts
from infra.settings.training import RunOn
from tpu_agent.bundle import program
from tpu_core.contract import AS_ROOT

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
LOCK = "tensorflow-lock"
"""The metadata with the hashes of what the start-up script installs, or `none`."""
AGENT = "agent"
"""The metadata with the agent, which the start-up script runs."""
LIMITS = "limits"
"""The metadata with what the agent does beside running the trainer."""
JOBS = "training-jobs"
"""The metadata that says that a machine runs the jobs of the queue, and as which account."""
MESSAGES = "messages"
"""The metadata that says whom the agent tells: it names a secret, and never a webhook's URL."""
ZONES = "tpu-zones"
"""The metadata with all zones that the TPU may be in, where there are several."""
_PREFIX = "training-"


@dataclass(frozen=True)
class Machine:
    """What a VM and a TPU have in common.

    Attributes:
        name: its name; the names of several slices begin with it.
        account: address of the service account that it runs as.
        tag: by which the firewall of the stack's own network lets it in.
        metadata: what its start-up script reads; a classic TPU node has none.
        requires: what it waits for although none of its properties names it.
        parts_require: what its disks wait for, and all else that it is made of.
    """

    project: str
    zone: str
    name: str
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    account: pulumi.Input[str]
    tag: str
    labels: Mapping[str, str]
    metadata: Mapping[str, pulumi.Input[str]]
    requires: tuple[pulumi.Resource, ...]
    parts_require: tuple[pulumi.Resource, ...]


@dataclass(frozen=True)
class Job:
    """The training that a machine runs.

    Attributes:
        wheels: a list of wheels for pip beside the package index.
    """

    name: str
    args: tuple[str, ...]
    tensorflow: str
    wheels: str | None
    bucket_url: pulumi.Input[str]
    wheel_url: pulumi.Input[str]
    wheel_sha256: str


def custom_timeouts(timeouts: Timeouts) -> pulumi.CustomTimeouts | None:
    """Return the timeouts for the engine; None if none is set."""
    given = {
        "create": timeouts.create_minutes,
        "update": timeouts.update_minutes,
        "delete": timeouts.delete_minutes,
    }
    spans = {verb: f"{minutes:g}m" for verb, minutes in given.items() if minutes is not None}
    return pulumi.CustomTimeouts(**spans) if spans else None


def agent_metadata(settings: StackSettings, context: Context) -> dict[str, pulumi.Input[str]]:
    """Return what the agent does beside running the trainer."""
    limits = _limits(settings, context.names)
    account = context.names.email_of(context.names.jobs_account, settings.project)
    who = account if settings.jobs.apart else AS_ROOT
    jobs = {JOBS: who} if settings.jobs.enabled else {}
    zones = {ZONES: ",".join(settings.tpu_zones)} if len(settings.tpu_zones) > 1 else {}
    return {**limits, **jobs, **_messages(settings, context), **zones}


def _limits(settings: StackSettings, names: Names) -> dict[str, pulumi.Input[str]]:
    limits, recovery = settings.limits, settings.recovery
    if not limits.any and not recovery.enabled:
        return {}
    budgets = {"preemption": recovery.preemptions_per_day, "failure": recovery.failures_per_day}
    said = {
        "tpus": names.tpus(settings.tpu.slices),
        "timeToLiveHours": limits.time_to_live_hours,
        "idleMinutes": limits.idle_minutes,
        # A group would restart a VM that turns itself off when the TPU's time is up.
        "turnOff": settings.training.run_on is RunOn.VM and settings.vm.managed is None,
        "recovery": budgets if recovery.enabled else None,
        # The TPUs of a request in the queue are lost and made anew together.
        "request": names.tpu if recovery.enabled and settings.tpu.queue else None,
        "zoneMinutes": settings.tpu.queue.minutes_in_zone if settings.tpu.queue else None,
    }
    return {LIMITS: json.dumps({key: value for key, value in said.items() if value is not None})}


def _messages(settings: StackSettings, context: Context) -> dict[str, pulumi.Input[str]]:
    messages, parent = settings.messages, f"projects/{settings.project}"
    if not messages.any:
        return {}
    said = {
        "webhook": messages.webhook and f"{parent}/secrets/{messages.webhook}",
        "topic": messages.pubsub_topic and f"{parent}/topics/{messages.pubsub_topic}",
        "log": context.names.messages_log(settings.project) if messages.emails else None,
        "cost": messages.cost_dollars and _ceiling(messages.cost_dollars, settings, context),
    }
    return {MESSAGES: json.dumps({key: value for key, value in said.items() if value})}


def _ceiling(dollars: int, settings: StackSettings, context: Context) -> dict[str, float]:
    """Return the ceiling, and what an hour costs with the TPU and without it."""
    costs = of_stack(settings, context.stack, context.catalog)
    rest = replace(costs, lines=tuple(line for line in costs.lines if line.part != "TPU"))
    hours = {"hour": costs.configured.hour, "hourWithoutTpu": rest.configured.hour}
    return {"dollars": dollars, **{name: float(hour) for name, hour in hours.items()}}


def replace_for_another_job(metadata: Iterable[str]) -> pulumi.ResourceOptions:
    """Replace a machine whose job changes: a start-up script runs only at boot."""
    keys = sorted({JOBS, *(key for key in metadata if key.startswith(_PREFIX))})
    return pulumi.ResourceOptions(replace_on_changes=[f'metadata["{key}"]' for key in keys])


def trainer_metadata(cost_note: str) -> dict[str, pulumi.Input[str]]:
    """Return the metadata of the one machine that runs the trainer: its agent, what it costs."""
    return {COST_NOTE: cost_note, AGENT: program()}


def job_metadata(
    job: Job, tpus: tuple[str, ...], zone: str, project: str
) -> dict[str, pulumi.Input[str]]:
    """Return the metadata that the start-up scripts read (tpu_core/contract.py has the keys).

    `tpus` are the names of the slices.
    """
    further: dict[str, pulumi.Input[str]] = {"tpu-names": ",".join(tpus)} if len(tpus) > 1 else {}
    if job.wheels:
        further[f"{_PREFIX}wheels"] = job.wheels
    return {
        "tpu-name": tpus[0],
        **further,
        "tpu-zone": zone,
        "tpu-project": project,
        "bucket-url": job.bucket_url,
        f"{_PREFIX}wheel": job.wheel_url,
        f"{_PREFIX}wheel-sha256": job.wheel_sha256,
        f"{_PREFIX}args": json.dumps(job.args),
        f"{_PREFIX}tensorflow": job.tensorflow,
        f"{_PREFIX}job": job.name,
    }
