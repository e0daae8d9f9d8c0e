"""Who holds a lock: what the engine's own lock leaves out.

The engine says host, user, process and time. That proves no death: another container may have the
same host and the same numbers of processes. So while an engine of its own may hold a lock,
`tpustack` keeps a note next to the state: on which boot, in which process namespace and in which
run of a pipeline that engine is.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from tpu_training.checkpoints.lease import Holder, parse_holder
from tpustack.cloud import times
from tpustack.errors import TpustackError
from tpustack.recovery.store import Bucket, Folder, store_of

_FOLDER = ".tpustack/holders/"
_LOCKING = ("up ", "destroy ", "refresh ", "stack rename ", "stack import ", "stack rm ")
# Where a forge's API tells of a run: GitHub's of the whole run, GitLab's of the job.
_RUNS = (
    "{GITHUB_API_URL}/repos/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}/attempts/"
    "{GITHUB_RUN_ATTEMPT}",
    "{CI_API_V4_URL}/projects/{CI_PROJECT_ID}/jobs/{CI_JOB_ID}",
)


@dataclass(frozen=True)
class Held:
    """An engine that may hold a lock, by its note.

    Attributes:
        note: the note's file.
        holder: the engine.
        since: when it began.
        run: the run of a pipeline that it is in, or nothing.
    """

    note: str
    holder: Holder
    since: datetime
    run: str


class Note:
    """The note of an engine that has just begun; it stays if the engine is killed.

    Where it can't be written, nothing proves later that the engine is dead.
    """

    def __init__(
        self,
        process: subprocess.Popen[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._process, self._environment = process, environment
        self._locks = " ".join((*arguments[:2], "")).startswith(_LOCKING)
        self._name = f"{_FOLDER}{uuid.uuid4().hex}.json"
        self._store: Folder | Bucket | None = None

    def write(self) -> None:
        """Write it, unless the engine's command takes no lock."""
        with contextlib.suppress(TpustackError, OSError):
            self._store = store_of(self._environment) if self._locks else None
            if self._store is not None:
                said = json.loads(Holder.of(self._process.pid).to_json())
                said["run"] = run_of(self._environment)
                self._store.write(self._name, json.dumps(said, indent=2) + "\n")

    def remove(self) -> None:
        """Remove it if the engine was not killed, and so has given its lock back."""
        code = self._process.poll()
        if self._store is not None and code is not None and code >= 0:
            with contextlib.suppress(TpustackError, OSError):
                self._store.delete(self._name)


def found(store: Folder | Bucket) -> list[Held]:
    """Return the engines that are noted; what is damaged, or of another format, proves nothing."""
    return [held for file in store.files(_FOLDER) if (held := _parsed(*file))]


def run_of(environment: Mapping[str, str]) -> str:
    """Return the address of this run of a pipeline at its forge's API; nothing outside of one."""
    for form in _RUNS:
        with contextlib.suppress(KeyError):
            return form.format_map(environment)
    return ""


def _parsed(note: str, text: str) -> Held | None:
    holder = parse_holder(text)
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        if holder is not None:
            since = times.read(holder.since).astimezone(timezone.utc)
            return Held(note, holder, since, str(json.loads(text)["run"]))
    return None
