"""The IAM permissions that deploying a stack takes: catalog/deployer.yaml, by its settings."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tpu_core.paths import DATA, DECLARATION, WHEELS
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import read_table
from tpu_infra.names import names_of
from tpu_infra.settings import EncryptionSettings, StackSettings

_FILE: Final = Path(__file__).parent / "catalog" / "deployer.yaml"
# The purposes, as the file's head describes them.
READ: Final = "read"
WRITE: Final = "write"
CHANGE: Final = "change"
WAIT: Final = "wait"
ALL: Final = (READ, WRITE, CHANGE, WAIT)
OBJECTS_ROLE: Final = "roles/storage.objectUser"
_OBJECTS: Final = (DECLARATION, DATA, WHEELS)

# They count for requests in the queue, too.
TPU_PERMISSIONS: Final = ("tpu.nodes.delete", "tpu.nodes.start", "tpu.nodes.stop")

# When each group of catalog/deployer.yaml counts. A test compares the names here and there.
_APPLIES: Final[Mapping[str, Callable[[StackSettings], bool]]] = {
    "everything": lambda s: True,
    "an account of its own": lambda s: makes_accounts(s),
    "roles for its machines": lambda s: s.grant_roles,
    "a machine of compute engine": lambda s: s.has_vm or s.is_compute,
    "a vm of its own": lambda s: s.is_compute or (s.has_vm and s.vm.instance_group is None),
    "an instance group": lambda s: s.vm.instance_group is not None or _is_slice(s),
    "a slice of machines": lambda s: _is_slice(s),
    "a health check of the vm": lambda s: (
        s.vm.instance_group is not None and (s.is_compute or not s.trains_on_tpu)
    ),
    "disks of its own": lambda s: (
        s.vm.keep_boot_disk or any(disk.name for disk in s.tpu.data_disks)
    ),
    "apis that the stack enables": lambda s: s.enable_apis,
    "a bucket of its own": lambda s: s.bucket.create,
    "a bucket that goes with the stack": lambda s: s.bucket.create and s.bucket.force_destroy,
    "a key": lambda s: s.bucket.encryption is not None and s.grant_roles,
    "a key of its own": lambda s: _own_key(s.bucket.encryption),
    "a key that goes with the stack": lambda s: (
        _own_key(s.bucket.encryption) and s.bucket.force_destroy
    ),
    "a network of its own": lambda s: s.network.create,
    "a tpu": lambda s: not s.is_compute,
    "roles for who looks its tpu up": lambda s: not s.is_compute and s.grant_roles,
    "several slices": lambda s: s.tpu.slices > 1,
    "limits": lambda s: s.keeps_limits and s.limits.role is None,
    "recovery": lambda s: s.recovery.enabled and s.grant_roles,
    "jobs with an account of their own": lambda s: s.jobs.apart and s.grant_roles,
    "vertex training": lambda s: s.jobs.vertex is not None,
    "submitters of vertex training": lambda s: (
        s.jobs.vertex is not None and bool(s.jobs.vertex.submitters) and s.grant_roles
    ),
    "metrics of the vm": lambda s: s.vm.ops_agent and s.grant_roles,
    "a public address of the vm": lambda s: s.vm.public_ip or (s.is_compute and s.tpu.external_ips),
    "a budget": lambda s: s.budget is not None,
    "addresses that the budget tells": lambda s: s.budget is not None and bool(s.budget.emails),
    "a topic that the budget tells": lambda s: (
        s.budget is not None and s.budget.pubsub_topic is not None
    ),
    "a topic of its own": lambda s: s.budget is not None and s.budget.own_topic is not None,
    "messages": lambda s: s.messages.any,
    "a topic of messages": lambda s: s.messages.pubsub_topic is not None,
}


@dataclass(frozen=True)
class Permissions:
    """Sorted permissions, by the purpose that they serve (one of `ALL`).

    Attributes:
        project: for a role in the project.
        billing_account: on the billing account, which `billing_role` grants.
        billing_role: empty without a budget.
        grants: the roles that the stack gives to its machines and to Google's own accounts, by the
            permission that it gives them with, without one that it makes itself.
    """

    project: Mapping[str, tuple[str, ...]]
    billing_account: Mapping[str, tuple[str, ...]]
    billing_role: str
    grants: Mapping[str, tuple[str, ...]]

    def of_project(self, *kinds: str) -> list[str]:
        """Return the permissions of some purposes (all if none is named), each once."""
        return _together(self.project, kinds or ALL)

    def of_billing_account(self, *kinds: str) -> list[str]:
        """Return the permissions of some purposes (all if none is named), each once."""
        return _together(self.billing_account, kinds or ALL)


def permissions_of(settings: StackSettings) -> Permissions:
    """Return the permissions that a stack with these settings takes."""
    billing = _catalog()["billingAccount"] if settings.budget else {}
    account = {kind: tuple(billing.get(kind, ())) for kind in ALL}
    project, given = (_applying(_catalog()[part], settings) for part in ("groups", "grants"))
    return Permissions(project, account, billing.get("role", ""), given)


def _is_slice(settings: StackSettings) -> bool:
    tpu = Catalog().accelerator(settings.tpu.accelerator_type, settings.tpu.topology)
    return settings.is_compute and tpu is not None and tpu.hosts > 1


def _applying(
    listed: Mapping[str, Mapping[str, list[str]]], settings: StackSettings
) -> dict[str, tuple[str, ...]]:
    """Return the groups that apply to a stack as one."""
    merged: dict[str, set[str]] = {}
    for group in (listed[name] for name in listed if _APPLIES[name](settings)):
        for key, names in group.items():
            merged.setdefault(key, set()).update(names)
    return {key: tuple(sorted(names)) for key, names in sorted(merged.items())}


def objects_condition(settings: StackSettings, stack: str) -> str:
    """Return the condition of the deployer's `OBJECTS_ROLE`; empty where it needs none.

    The right to replace and delete objects counts for those alone that the stack uploads, not for
    what the training writes. A bucket that goes with the stack goes whole.
    """
    if settings.bucket.create and settings.bucket.force_destroy:
        return ""
    objects = f"projects/_/buckets/{names_of(settings, stack).bucket}/objects/"
    return " || ".join(f"resource.name.startsWith('{objects}{each}')" for each in _OBJECTS)


def permissions_of_role(settings: StackSettings) -> list[str]:
    """Return the permissions of the limits' role, with which the agent may recreate a lost TPU."""
    if not settings.is_compute:
        return [*(["tpu.nodes.create"] if settings.recovery.enabled else []), *TPU_PERMISSIONS]
    role: dict[str, list[str]] = _catalog()["agent"]
    public = role["public addresses"] if settings.tpu.external_ips else []
    return sorted([*role["each"], *role[form_of(settings)], *public])


def form_of(settings: StackSettings) -> str:
    """Return `machine` or `slice` for a TPU on Compute Engine, else nothing."""
    return "" if not settings.is_compute else "slice" if _is_slice(settings) else "machine"


def every_permission() -> list[str]:
    """Return each permission in the project that some stack takes."""
    groups: dict[str, dict[str, list[str]]] = _catalog()["groups"]
    return sorted({name for group in groups.values() for name in _together(group, ALL)})


def sweeper() -> list[str]:
    """Return what deleting resources that are in no state takes (`tpustack ci sweep`)."""
    listed: list[str] = _catalog()["sweeper"]
    return listed


def _catalog() -> dict[str, Any]:
    read: dict[str, Any] = read_table(_FILE)
    return read


def _together(by_kind: Mapping[str, Iterable[str]], kinds: Iterable[str]) -> list[str]:
    return sorted({name for kind in kinds for name in by_kind.get(kind, ())})


def makes_accounts(settings: StackSettings) -> bool:
    """Return whether the stack makes a service account."""
    jobs = settings.jobs
    of_jobs = jobs.apart and jobs.service_account is None
    of_vertex = jobs.vertex is not None and jobs.vertex.service_account is None
    of_watcher = settings.has_watcher and settings.recovery.service_account is None
    return settings.service_account is None or of_jobs or of_vertex or of_watcher


def _own_key(encryption: EncryptionSettings | None) -> bool:
    return encryption is not None and encryption.key is None
