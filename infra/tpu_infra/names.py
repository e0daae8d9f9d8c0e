"""The names of the stack's resources: readable, and the same on every update."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_core.contract import MARK as MARK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpu_infra.settings import StackSettings

# Names don't tell apart two stacks of one name in two backends; the label MARK does. The engine
# writes what it is about to make into the stack's own state, the mark included. So `tpustack
# recover` adopts only what carries this stack's mark, and nothing of a colleague's.
# A resource keeps the mark that it was made with, also when the stack moves to another backend.
KEPT_LABEL = [f'labels["{MARK}"]']
"""What a resource whose labels are marked ignores of later changes."""
KEPT_DESCRIPTION = ["description"]
"""The same for a resource whose description is marked."""
JOB_LABEL, JOB_ID_LABEL = "tpu-stack-job", "tpu-stack-job-id"
"""The label of a custom job of Vertex AI that `tpustack job` has submitted."""
VERTEX = "Jobs of a tpu-stack on Vertex AI"
"""Title of the account that Vertex AI runs a stack's jobs as."""
NAME, STACK, OWNER = "{name}", "{stack}", "{owner}"
"""What a pattern has instead of the kind of a resource, the stack and the person."""
MADE_FOR = "Made by tpu-stack for stack "
"""Beginning of the description of what has no labels; the mark is its end."""
_FOLDER = "file://"
_ACCOUNTS = ".iam.gserviceaccount.com"


@dataclass(frozen=True)
class Names:
    """The name of every resource that Google lists under a name."""

    pattern: str
    """The names, with NAME for what each is. What belongs to one gets a part more at the end."""
    bucket: str
    project: str
    given: tuple[str | None, ...] = (None, None, None, None)
    """Addresses of accounts that are there: the machines', jobs', Vertex AI's and watcher's."""

    def _of(self, kind: str) -> str:
        return self.pattern.replace(NAME, kind)

    @property
    def prefix(self) -> str:
        """What the names have in common: titles for people, and the beginning of a key ring."""
        return "-".join(word for word in self.pattern.split("-") if word != NAME)

    @property
    def tpu(self) -> str:
        """The TPU; a queued resource has the same name as its node."""
        return self._of("tpu")

    def tpus(self, slices: int) -> tuple[str, ...]:
        """Return the slices' names, as Google forms them; one slice has no number."""
        return (
            tuple(f"{self.tpu}-{index}" for index in range(slices)) if slices > 1 else (self.tpu,)
        )

    def is_of_tpu(self, name: str) -> bool:
        """Return whether a TPU or machine of that name is the TPU, or one of its numbered parts."""
        return re.fullmatch(rf"{re.escape(self.tpu)}(-\d+)?", name) is not None

    @staticmethod
    def machine_of_slice(tpu: str, number: int) -> str:
        """Return a machine of a slice on Compute Engine; Google numbers them from 001."""
        return f"{tpu}-{number + 1:03}"

    @property
    def vm(self) -> str:
        """The VM."""
        return self._of("vm")

    @property
    def vm_of_group(self) -> str:
        """The VM that a managed instance group recreates."""
        return f"{self.vm}-0"

    @property
    def account(self) -> str:
        """Account id of the service account."""
        return self._of("sa")

    @property
    def jobs_account(self) -> str:
        """Account id of the service account that jobs of the queue act as."""
        return self._of("job")

    @property
    def vertex_account(self) -> str:
        """Account id of the service account that Vertex AI runs jobs as."""
        return self._of("vx")

    @property
    def watcher_account(self) -> str:
        """Account id of the service account of a VM that only recreates the TPU."""
        return self._of("vm")

    @property
    def email(self) -> str:
        """Address of the account of the machines."""
        return self.given[0] or self.email_of(self.account, self.project)

    @property
    def jobs_email(self) -> str:
        """Address of the account that jobs of the queue act as."""
        return self.given[1] or self.email_of(self.jobs_account, self.project)

    @property
    def vertex_email(self) -> str:
        """Address of the account that Vertex AI runs jobs as."""
        return self.given[2] or self.email_of(self.vertex_account, self.project)

    @property
    def watcher_email(self) -> str:
        """Address of the account of a VM that only recreates the TPU."""
        return self.given[3] or self.email_of(self.watcher_account, self.project)

    @staticmethod
    def email_of(account: str, project: str) -> str:
        """Return the address of an account of a project by its id."""
        domain = ".".join(reversed(project.split(":")))
        return f"{account}@{domain}{_ACCOUNTS}"

    @property
    def limits_role(self) -> str:
        """Beginning of the id of the role that limits need; such ids have no hyphens."""
        return self._of("limits").replace("-", "_")

    @property
    def messages_log(self) -> str:
        """The full name of the log whose entries are mailed."""
        return f"projects/{self.project}/logs/{self._of('messages')}"

    @property
    def network(self) -> str:
        """The stack's own network, its subnet, its router and its NAT."""
        return self._of("net")


def names_of(settings: StackSettings, stack: str) -> Names:
    """Return the names in a stack."""
    owner = settings.owner or ""
    given = None if settings.name_prefix else settings.name_pattern
    whose = f"-{owner}" if owner else ""
    prefix = settings.name_prefix or f"tpu-stack-{stack}{whose}"
    words = {STACK: stack, OWNER: owner}
    pattern = "-".join(words.get(word, word) for word in (given or f"{prefix}-{NAME}").split("-"))
    of_project = f"{in_bucket_names(settings.project)}-{prefix}"
    bucket = settings.bucket.name or (pattern.replace(NAME, "data") if given else of_project)
    jobs = settings.jobs
    vertex = jobs.vertex.service_account if jobs.vertex else None
    watcher = settings.recovery.service_account
    accounts = (settings.service_account, jobs.service_account, vertex, watcher)
    return Names(pattern, bucket, settings.project, accounts)


def project_of(email: str) -> str:
    """Return the project of an account by its address, `email_of` backwards."""
    name, _, domain = email.partition("@")[2].removesuffix(_ACCOUNTS).partition(".")
    return f"{domain}:{name}" if domain else name


def in_bucket_names(project: str) -> str:
    """Return a project's id as a bucket's name may have it.

    A project of a domain is called example.com:project; bucket names have no colon, and one with a
    dot would have to be a domain that the user owns.
    """
    return project.replace(":", "-").replace(".", "-")


def mark_of(stack: str) -> str:
    """Return what identifies a stack: its name and the backend that has it."""
    url = backend(os.environ)
    # Two engineers' own folders may have the same name on their two machines.
    whose = _person() if url.startswith(_FOLDER) else ""
    identity = json.dumps([url, whose, stack])
    # 32 bits: the few stacks of a project do not meet by chance.
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


def backend(environment: Mapping[str, str]) -> str:
    """Return the backend's address: the engine's variable, else the one that it logged in to."""
    if url := environment.get("PULUMI_BACKEND_URL"):
        return url
    home = Path(environment.get("PULUMI_HOME") or Path.home() / ".pulumi")
    try:
        current = json.loads((home / "credentials.json").read_text(encoding="utf-8"))["current"]
    except (OSError, ValueError, KeyError):
        return _FOLDER
    return str(current)


def _person() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()
