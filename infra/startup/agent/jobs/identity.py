"""Who a job is: a user of the machine without root, who acts on Google as the jobs' account.

The machine's account may do more than any job: make TPUs, change every job's record. Its tokens
come from the metadata server, which the kernel keeps the job's user from. What can't be kept apart
does not run: nothing here falls back to root.
"""

from __future__ import annotations

import contextlib
import pwd
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .environment import SetupError
from .metadata import JobMetadata

ACCOUNT = "TPU_STACK_JOB_ACCOUNT"
"""Variable of the runner's unit: the jobs' account; `root` has them run as root and the machine."""
AS_ROOT = "root"
USER = "tpu-job"
_EXISTS = 9
# Until the grants of the jobs' account count: sometimes seven minutes, says Google.
_GRANTS = 600
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


class Identity:
    """The user of one try, with a server in place of the machine's; without it this process's."""

    def __init__(self, metadata: JobMetadata | None = None) -> None:
        self._metadata, self._server = metadata, ""

    def enter(self, check: Callable[[], None]) -> None:
        """Make the user, close the machine's server to it, and wait for the account's grants.

        `check` raises what ends the wait. Raises SetupError.
        """
        if self._metadata is None:
            return
        user = ("--system", "--user-group", "--no-create-home", "--shell=/usr/sbin/nologin", USER)
        _must(["useradd", *user], but=_EXISTS)
        # Neither cron nor a systemd that lingers starts anything of an expired account: after a
        # boot that would be before the packet filter is there.
        _must(["usermod", "--expiredate=1970-01-02", USER])
        kill_all()
        address, port = self._metadata.serve()
        self._server = f"{address}:{port}"
        _must(["nft", "--file", "-"], _CLOSED.format(user=USER, port=port))
        for left in reversed(range(_GRANTS)):
            try:
                self._metadata.token()
                return
            except OSError as error:
                if not left:
                    raise SetupError(f"{error} (after {_GRANTS} s)") from None
            check()
            time.sleep(1.0)

    def own(self, paths: Iterable[Path]) -> None:
        """Give files and folders to the user: links themselves, not what they lead to."""
        if self._metadata:
            _must(["chown", "--recursive", "--no-dereference", f"{USER}:", *map(str, paths)])

    def command(self, command: Sequence[str]) -> list[str]:
        """Return what runs a command as the user, who never becomes another."""
        who = (f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--no-new-privs")
        return ["setpriv", *who, *command] if self._metadata else list(command)

    def variables(self, home: Path) -> dict[str, str]:
        """Return how the processes of the job are told who they are."""
        names = ("GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT")
        # Google's library for Python asks by HTTPS otherwise where the image has certificates.
        server = {**dict.fromkeys(names, self._server), "GCE_METADATA_MTLS_MODE": "none"}
        user = {"HOME": str(home), "USER": USER, "LOGNAME": USER}
        return {**server, **user} if self._metadata else {}


def kill_all() -> None:
    """Kill every process of the user, also those that have hidden that they are a try's."""
    # Without a user there is none; at the most processes no program can be started.
    with contextlib.suppress(KeyError, OSError):
        user = pwd.getpwnam(USER).pw_uid
        subprocess.run(["sh", "-c", "kill -KILL -1 2>&-"], user=user, check=False)


def _must(command: Sequence[str], given: str = "", but: int = 0) -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode not in (0, but):
        raise SetupError(
            "jobs.asRoot is false, and no job can be kept apart here. Use another image, "
            f"or set jobs.asRoot: true. {command[0]}: {done.stderr.strip() or done.returncode}"
        )
