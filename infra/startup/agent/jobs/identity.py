"""Who a job is: a user of the machine without root, who acts on Google as the jobs' account.

The machine's account may do more than any job: make TPUs, change every job's record. Its tokens
come from the metadata server, which the kernel keeps the job's user from. What can't be kept apart
does not run: nothing here falls back to root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..google import Call
from .metadata import JobMetadata

ACCOUNT = "TPU_STACK_JOB_ACCOUNT"
"""Variable of the runner's unit: the jobs' account; `root` has them run as root and the machine."""
AS_ROOT = "root"
USER = "tpu-job"
_EXISTS = 9
# Programs that have one of the server's addresses built in get to the job's own; names are still
# looked up there. The table is replaced whole, so that it is never missing.
# https://docs.cloud.google.com/compute/docs/metadata/querying-metadata (2026-11-24)
_CLOSED = """
table inet tpu_stack_jobs
delete table inet tpu_stack_jobs
table inet tpu_stack_jobs {{
  chain lead {{
    type nat hook output priority -100;
    meta skuid "{user}" ip daddr 169.254.169.254 tcp dport 80 redirect to :{port}
  }}
  chain close {{
    type filter hook output priority 0;
    meta skuid "{user}" ip daddr 169.254.169.254 tcp dport != 53 reject
    meta skuid "{user}" ip6 daddr fd20:ce::254 reject
  }}
}}
"""


class NotApart(Exception):
    """A job can't be kept apart from its machine."""


class Identity:
    """The user and the account of one try.

    Args:
        account: the address of the jobs' account.
        call: calls Google as the machine's account.
    """

    def __init__(self, account: str, call: Call) -> None:
        self._metadata, self._server = JobMetadata(account, call), ""

    def enter(self) -> None:
        """Make the user, and close the machine's metadata server to it. Raises NotApart."""
        here = ("--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin", USER)
        _must(["useradd", *here], but=_EXISTS)
        self.leave()
        address, port = self._metadata.serve()
        self._server = f"{address}:{port}"
        _must(["nft", "--file", "-"], _CLOSED.format(user=USER, port=port))

    def why_no_token(self) -> str:
        """Return why the jobs' account can't be had yet; empty if it can."""
        try:
            self._metadata.token()
        except OSError as error:
            return str(error)
        return ""

    def own(self, paths: Iterable[Path]) -> None:
        """Give files and folders to the user: links themselves, not what they lead to."""
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(USER)
            for path in paths:
                for each in (path, *path.rglob("*")):
                    os.chown(each, user.pw_uid, user.pw_gid, follow_symlinks=False)

    def command(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command as the user, who never becomes another."""
        who = (f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--no-new-privs")
        return ["setpriv", *who, *command]

    def variables(self, home: Path) -> dict[str, str]:
        """Return how the processes of the job are told who they are."""
        names = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT")
        return {
            **dict.fromkeys(names, self._server),
            # Google's library for Python asks by HTTPS otherwise where the image has certificates.
            "GCE_METADATA_MTLS_MODE": "none",
            "HOME": str(home),
            "USER": USER,
            "LOGNAME": USER,
        }

    def leave(self) -> None:
        """Kill every process of the user, also those that have hidden that they are the try's."""
        with contextlib.suppress(KeyError, PermissionError):
            user = pwd.getpwnam(USER).pw_uid
            subprocess.run(["sh", "-c", "kill -KILL -1 2>&-"], user=user, check=False)


def identity_of(account: str, call: Call) -> Identity | None:
    """Return who jobs are; None where they are root, or a container that is theirs."""
    return Identity(account, call) if account not in ("", AS_ROOT) else None


def _must(command: Sequence[str], given: str = "", but: int = 0) -> None:
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
        why = "" if done.returncode in (0, but) else done.stderr.strip() or str(done.returncode)
    except OSError as error:
        why = str(error)
    if why:
        raise NotApart(
            f"jobs.asRoot is false, and a job can't have a user of its own here: {command[0]}: "
            f"{why}. Use an image where it works, or set jobs.asRoot: true"
        )
