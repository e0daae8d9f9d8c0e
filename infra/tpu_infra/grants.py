"""The roles that a stack grants, as data: components declare them, or a preview lists them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tpu_core.paths import DECLARATION
from tpu_infra.names import Names, project_of
from tpu_infra.settings import StackSettings

# Read and write objects, and see the bucket: TensorFlow looks it up before it writes.
_WRITER, _LOOKER = "roles/storage.objectUser", "roles/storage.legacyBucketReader"
_READER = "roles/storage.objectViewer"
_ACTS_AS = "roles/iam.serviceAccountUser"
_LOGS = "roles/logging.logWriter"
PROJECT_ROLES = ("roles/tpu.viewer", _LOGS)
"""Look the TPU up by its name; write logs."""
JOBS_OBJECTS = ("jobs", "data", "notices/")
"""What a job reads and writes by its own account: nothing that the agent or a person acts by.

TensorFlow also asks for the folders themselves, without a slash. The TPU VM, which has this account
where the VM drives it, writes what is announced for it.
"""
VERTEX_OBJECTS = ("jobs", "data", "archives/", "bell", "queue/")
"""The same on Vertex AI, where a container has one account, which also fetches it and keeps its
record.
"""


class On(Enum):
    """What a role is granted on, by the words of gcloud that grant it."""

    PROJECT = "projects"
    BUCKET = "storage buckets"
    ACCOUNT = "iam service-accounts"


@dataclass(frozen=True)
class Condition:
    """When a grant counts; the expression is in IAM's language."""

    title: str
    expression: str
    description: str | None = None


@dataclass(frozen=True)
class Grant:
    """One role of one member.

    Attributes:
        name: of its resource. It must stay: for another name the engine makes the same grant, which
            is there already, and then takes it away with the old name.
        on: what kind of thing it is on.
        target: the project's id, the bucket's name or the account's address.
        role: its name; one of the project's own is projects/P/roles/R.
        member: as IAM writes it, such as serviceAccount:ADDRESS.
        condition: when it counts; None for always.
    """

    name: str
    on: On
    target: str
    role: str
    member: str
    condition: Condition | None = None

    @property
    def command(self) -> str:
        """The command by which an administrator grants it."""
        target = f"gs://{self.target}" if self.on is On.BUCKET else self.target
        place = [f"--project={project_of(self.target)}"] if self.on is On.ACCOUNT else []
        # gcloud asks, or fails, without one where the policy has a condition anywhere.
        condition = "None"
        if only := self.condition:
            about = f",description={only.description}" if only.description else ""
            condition = f"title={only.title}{about},expression={only.expression}"
        words = [*self.on.value.split(), "add-iam-policy-binding", target, *place]
        granted = [f"--member={self.member}", f"--role={self.role}", f"--condition={condition}"]
        return shlex.join(["gcloud", *words, *granted])


def elsewhere(settings: StackSettings, names: Names) -> list[Grant]:
    """Return what an administrator grants, since the stack grants nothing; empty if it does."""
    if settings.grant_roles:
        return []
    found = of_machines(settings, names)
    if settings.has_watcher:
        found += of_watcher(settings, names)
    if settings.jobs.apart:
        found += of_jobs(settings, names)
    if settings.keeps_limits:
        found += of_limits(settings, names)
    if settings.jobs.vertex:
        found += of_vertex(settings, names)
    return found


def commands(settings: StackSettings, names: Names) -> list[str]:
    """Return the commands by which an administrator does so, and lets the bucket use its key."""
    if settings.grant_roles:
        return []
    encryption, project = settings.bucket.encryption, settings.project
    # docs.cloud.google.com/sdk/gcloud/reference/storage/service-agent
    of_key = ["gcloud", "storage", "service-agent", f"--project={project}", "--authorize-cmek"]
    keys = [shlex.join([*of_key, encryption.key])] if encryption and encryption.key else []
    return [*(each.command for each in elsewhere(settings, names)), *keys]


def of_machines(settings: StackSettings, names: Names) -> list[Grant]:
    """Return the fewest roles with which the machines train."""
    member, metrics = _member(names.email), () if settings.has_watcher else _metrics(settings)
    return [
        *on_bucket("storage.", names, member, read_only_object(settings)),
        *_on_project(settings, "", member, (*_roles(settings), *metrics)),
    ]


def of_watcher(settings: StackSettings, names: Names) -> list[Grant]:
    """Return those of a VM that only recreates the TPU, whose own machines must not create any."""
    member = _member(names.watcher_email)
    return [
        *on_bucket("watcher-storage.", names, member, read_only_object(settings)),
        *_on_project(settings, "watcher-", member, (_LOGS, *_metrics(settings))),
    ]


def of_jobs(settings: StackSettings, names: Names) -> list[Grant]:
    """Return those of the jobs' account, and the machines' one on it: they make its tokens."""
    member, makes = _member(names.jobs_email), "roles/iam.serviceAccountTokenCreator"
    return [
        *on_bucket("jobs-storage.", names, member, only=JOBS_OBJECTS),
        *_on_project(settings, "jobs-", member, _roles(settings)),
        Grant("jobs-tokens", On.ACCOUNT, names.jobs_email, makes, _member(names.email)),
    ]


def of_limits(settings: StackSettings, names: Names) -> list[Grant]:
    """Return the right to take the TPU down, and with recovery to give the new one its account."""
    project = settings.project
    member = _member(names.watcher_email if settings.has_watcher else names.email)
    role = f"projects/{project}/roles/{settings.limits.role}"
    found = [Grant("agent", On.PROJECT, project, role, member)]
    # A classic node acts as an account of Google's.
    if settings.recovery.enabled and not settings.is_node:
        apart = settings.jobs.apart and not settings.trains_on_tpu
        account = names.jobs_email if apart else names.email
        found.append(Grant("acts-as", On.ACCOUNT, account, _ACTS_AS, member))
    return found


def of_vertex(settings: StackSettings, names: Names) -> list[Grant]:
    """Return those of the account of Vertex AI's jobs, and of those who may submit jobs."""
    project, member = settings.project, _member(names.vertex_email)
    found = on_bucket("runner-", names, member, only=VERTEX_OBJECTS)
    found.append(Grant("writer", On.PROJECT, project, _LOGS, member))
    for who in settings.jobs.vertex.submitters if settings.jobs.vertex else ():
        found += [
            Grant(f"user-{who}", On.PROJECT, project, "roles/aiplatform.user", who),
            Grant(f"acts-as-{who}", On.ACCOUNT, names.vertex_email, _ACTS_AS, who),
        ]
    return found


def outlives(grant: Grant, settings: StackSettings) -> bool:
    """Return whether a grant stays on destroy: others may need the same, and have it by now."""
    jobs, vertex = settings.jobs, settings.jobs.vertex
    given = [settings.service_account, jobs.service_account, vertex and vertex.service_account]
    given.append(settings.recovery.service_account)
    if grant.on is On.ACCOUNT and grant.target not in given:
        return False  # The account is the stack's own.
    if not grant.member:  # All TPU Nodes of a project have the same account of Google's.
        return not settings.bucket.create
    others = {_member(email) for email in given if email} | {*(vertex.submitters if vertex else ())}
    return grant.member in others


def read_only_object(settings: StackSettings) -> str | None:
    """Return the object that the agent reads and its account must not write, if there is one."""
    return DECLARATION if settings.recovery.enabled else None


def on_bucket(
    name: str,
    names: Names,
    member: str,
    read_only: str | None = None,
    only: tuple[str, ...] = (),
) -> list[Grant]:
    """Return the roles on the bucket; `name` is what the grants' names begin with."""
    return [
        Grant(f"{name}{role.rpartition('.')[2]}", On.BUCKET, names.bucket, role, member, condition)
        for role, condition in bucket_roles(names.bucket, read_only, only)
    ]


def bucket_roles(
    bucket: str, read_only: str | None, only: tuple[str, ...]
) -> Iterator[tuple[str, Condition | None]]:
    """Yield each role on the bucket, with the condition under which it counts.

    `read_only` names an object that may be read, but not created, overwritten or deleted. `only`
    limits the grant to objects whose names begin so.

    A list of objects is an access to the bucket, whose name the first condition lets pass. The
    second leaves lists to the other role. Sources: "Resource attributes for IAM Conditions",
    cloud.google.com/iam/docs/conditions-resource-attributes; the bucket needs uniform access,
    cloud.google.com/storage/docs/access-control/iam#conditions.
    """
    objects = f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/'
    if only:
        either = " || ".join(f'{objects}{each}")' for each in only)
        yield _WRITER, Condition("Only what jobs use", either)
    elif read_only:
        why = "What pulumi up writes and the machines only read"
        yield _WRITER, Condition(f"Not {read_only}", f'!{objects}{read_only}")', why)
    else:
        yield _WRITER, None
    yield _LOOKER, None
    if read_only and not only:
        yield _READER, None


def _roles(settings: StackSettings) -> tuple[str, ...]:
    # No TPU API knows the TPU of a machine of Compute Engine.
    return (_LOGS,) if settings.is_compute else PROJECT_ROLES


def _metrics(settings: StackSettings) -> tuple[str, ...]:
    return ("roles/monitoring.metricWriter",) if settings.vm.ops_agent else ()


def _on_project(
    settings: StackSettings, name: str, member: str, roles: tuple[str, ...]
) -> list[Grant]:
    return [
        Grant(f"{name}{role.rpartition('/')[2]}", On.PROJECT, settings.project, role, member)
        for role in roles
    ]


def _member(email: str) -> str:
    return f"serviceAccount:{email}"
