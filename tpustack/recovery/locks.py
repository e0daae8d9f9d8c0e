"""The locks of a backend in a bucket or folder: who holds them, and whether that run is dead.

The engine's lock says host, user, process and time. That proves no death: another container may
have the same host and the same numbers of processes. So while an engine of its own may hold a lock,
`tpustack` keeps a note next to the state: on which boot, in which process namespace and in which
run of a pipeline that engine is.
"""

import contextlib
import json
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tpu_core.bucket import Bucket
from tpu_core.process import Process, parse
from tpu_core.records import dump, replace_file
from tpu_core.times import parse_time
from tpu_infra.names import backend
from tpustack.cloud.google import Google
from tpustack.errors import TpustackError

Ended = Callable[[str], bool]
"""Whether a run of a pipeline, by its address, has ended for sure."""
# pulumi/pkg/backend/diy/lock.go
_LOCK = re.compile(
    r"(?P<url>\S+): created by (?P<who>\S*)@(?P<host>\S*) \(pid (?P<pid>\d+)\) at (?P<at>\S+)"
)
_LOCKS = ".pulumi/locks/"
# An engine takes its lock soon after it has begun. What takes longer is left to a person.
_BEFORE, _AFTER = timedelta(seconds=5), timedelta(minutes=5)
_NOTES = ".tpustack/holders/"
# The commands of the engine that take the lock; the space ends the last word.
_LOCKING = ("up ", "destroy ", "refresh ", "stack rename ", "stack import ", "stack rm ")
# Where a forge's API tells of a run: GitHub's of the whole run, GitLab's of the job.
_RUNS = (
    "{GITHUB_API_URL}/repos/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}/attempts/"
    "{GITHUB_RUN_ATTEMPT}",
    "{CI_API_V4_URL}/projects/{CI_PROJECT_ID}/jobs/{CI_JOB_ID}",
)


def unknown(_run: str) -> bool:
    """Ask no forge: no run is known to have ended."""
    return False


@dataclass(frozen=True)
class Lock:
    """One lock, as the engine reports it."""

    url: str
    user: str
    host: str
    pid: int
    since: datetime

    def __str__(self) -> str:
        when = self.since.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{self.user}@{self.host} (process {self.pid}) since {when}"

    def is_orphaned(self, known: "Sequence[Engine]", ended: Ended) -> bool:
        """Return whether its holder is dead for sure; what is unknown counts as alive.

        Neither its age nor a process number of this machine proves that: a run may take days, and
        another container may have the same host and the same numbers.

        Args:
            known: the engines that are noted next to the state.
            ended: asks the forge about the run that a holder was in.
        """
        own = [each for each in known if self.may_be_of(each)]
        return bool(own) and all(
            not each.holder.is_here()
            and (each.holder.is_gone() or bool(each.run and ended(each.run)))
            for each in own
        )

    def may_be_of(self, held: "Engine") -> bool:
        """Return whether a noted engine may have taken this lock."""
        own = (held.holder.machine, held.holder.process) == (self.host, self.pid)
        return own and -_BEFORE <= self.since - held.since <= _AFTER

    def path(self, stack: str) -> str:
        """Return its file in the backend; nothing where it is not one of this stack's locks."""
        _, found, rest = unquote(urlsplit(self.url).path).partition(f"/{_LOCKS}")
        # The address comes from the backend, which others may write. So a file is deleted only if
        # it is in the folder of this stack's own locks.
        folders = rest.split("/")
        ours = found and folders[-2:-1] == [stack] and ".." not in folders
        return f"{_LOCKS}{rest}" if ours else ""


class LockedError(TpustackError):
    """Another update of the stack is running, or was killed."""

    def __init__(self, locks: list[Lock]) -> None:
        super().__init__(f"the stack is locked by {holder_names(locks)}")
        self.locks = locks


def locks_in(message: str) -> list[Lock]:
    """Return the locks that the engine's refusal names."""
    return [
        Lock(
            found["url"],
            found["who"],
            found["host"],
            int(found["pid"]),
            datetime.fromisoformat(found["at"].replace("Z", "+00:00")),
        )
        for found in _LOCK.finditer(message)
    ]


def holder_names(locks: list[Lock]) -> str:
    """Return who holds locks, for a message."""
    return ", ".join(map(str, locks)) or "a holder whom the engine does not name"


def locked_message(stack: str, locks: list[Lock]) -> str:
    """Return the message about locks that are held."""
    return (
        f"stack {stack} is locked by {holder_names(locks)}, which is not known to be dead. Nothing "
        "was changed. Wait for that run and start this one again; if you know that it is dead, "
        f"release its lock with `tpustack recover --yes --stack {stack}`"
    )


@dataclass(frozen=True)
class Engine:
    """An engine that may hold a lock, by its note.

    Attributes:
        note: the note's file.
        holder: the engine.
        since: when it began.
        run: the run of a pipeline that it is in, or nothing.
    """

    note: str
    holder: Process
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
        self._name = f"{_NOTES}{uuid.uuid4().hex}.json"
        self._store: StateFolder | StateBucket | None = None

    def write(self) -> None:
        """Write it, unless the engine's command takes no lock."""
        with contextlib.suppress(TpustackError, OSError):
            self._store = store_of(self._environment) if self._locks else None
            if self._store is not None:
                note = json.loads(dump(Process.of(self._process.pid)))
                note["run"] = run_of(self._environment)
                self._store.write(self._name, json.dumps(note, indent=2) + "\n")

    def remove(self) -> None:
        """Remove it if the engine was not killed, and so has given its lock back."""
        code = self._process.poll()
        # Below 0 it was a signal: that engine has left its lock, which only this note explains.
        if self._store is not None and code is not None and code >= 0:
            with contextlib.suppress(TpustackError, OSError):
                self._store.delete(self._name)


def noted_engines(store: "StateFolder | StateBucket") -> list[Engine]:
    """Return the engines that are noted; what is damaged, or of another format, proves nothing."""
    return [held for file in store.files(_NOTES) if (held := _parsed(*file))]


def run_of(environment: Mapping[str, str]) -> str:
    """Return the address of this run of a pipeline at its forge's API; nothing outside of one."""
    for form in _RUNS:
        with contextlib.suppress(KeyError):
            return form.format_map(environment)
    return ""


def _parsed(note: str, text: str) -> Engine | None:
    holder = parse(text)
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError):
        if holder is not None:
            since = parse_time(holder.since).astimezone(timezone.utc)
            return Engine(note, holder, since, str(json.loads(text)["run"]))
    return None


def store_of(environment: Mapping[str, str]) -> "StateFolder | StateBucket | None":
    """Return the files of a backend; None where it is neither a folder nor a bucket of Google's."""
    url = urlsplit(backend(environment))
    if url.scheme == "file" and url.netloc + url.path:
        return StateFolder(Path(url.netloc + url.path).expanduser())
    return StateBucket(url.netloc, url.path.strip("/")) if url.scheme == "gs" else None


class StateFolder:
    """Files next to the state in a folder. All methods raise OSError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A command that looks at this moment must not find half a note.
        replace_file(path, text.encode())

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the files in a folder."""
        for path in (self._root / folder).glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                yield f"{folder}{path.name}", path.read_text(encoding="utf-8", errors="replace")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        # The engine keeps a file's hash next to it.
        for each in (name, f"{name}.attrs"):
            (self._root / each).unlink(missing_ok=True)


class StateBucket:
    """Files next to the state in a bucket. Unreachable: TpustackError; refused: OSError."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._store = Bucket(bucket, Google().exchange)
        self._prefix = f"{prefix}/" if prefix else ""

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        self._store.write(self._prefix + name, text.encode())

    def files(self, folder: str) -> Iterator[tuple[str, str]]:
        """Yield names and texts of the files in a folder."""
        for each in self._store.items(self._prefix + folder):
            if found := self._store.read(each.path):
                name = each.path.removeprefix(self._prefix)
                yield name, found[0].decode(errors="replace")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        # On its generation: what another command has written since stays.
        if found := self._store.look(self._prefix + name):
            self._store.delete(self._prefix + name, found.generation)


def mend_folder(url: str) -> list[Path]:
    """Remove attribute files that were cut off; return their paths.

    Next to each file the engine keeps one with its hash, which a killed engine may leave half
    written. It works without, but an empty one makes every command fail with "EOF". Buckets have no
    such files.
    """
    if not url.startswith("file://"):
        return []
    state = Path(urlsplit(url).path) / ".pulumi"
    files = [path for name in ("stacks", "locks") for path in (state / name).rglob("*.attrs")]
    cut_off = [path for path in files if not _is_whole(path)]
    for path in cut_off:
        path.unlink(missing_ok=True)
    return cut_off


def _is_whole(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return True
