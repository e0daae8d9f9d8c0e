"""Repairs a stack whose engine was killed; the repair may itself be killed at any point.

The engine's own means do a part of it. Its `cancel` deletes all locks of a stack, also one that a
living run has taken in the meantime, so locks are deleted by name. The flag
`--import-pending-creates` of its refresh (3.259) drops the operation without importing the
resource, which is then in no state, and `--clear-pending-creates` does the same; neither looks
whether the resource exists and whose it is. So resources that may exist are put into a copy of the
state, in a folder, and the engine refreshes that. The stack's own state is written once, when
everything is known; until then it names what was interrupted.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pulumi import automation

from tpu_core.words import plural
from tpustack.errors import TpustackError, diagnostics
from tpustack.project import BACKEND
from tpustack.recovery import locks as locking, state as states

Line = Callable[[str], None]
State = dict[str, Any]
# A TPU VM takes minutes to come and to go.
_LONGEST_WAIT, _PAUSE = 20 * 60.0, 5.0
_REFRESH = ("--yes", "--skip-preview", "--non-interactive", "--color=never")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Found:
    """An interrupted state, completed by a look at the cloud.

    Attributes:
        created: the URNs of what was being created.
        before: the state as the backend had it.
        after: the state to write.
    """

    created: list[str]
    before: State
    after: State


class Recovery:
    """Repairs the state of one stack in its backend.

    Args:
        stack: its name.
        workspace: the folder of Pulumi.yaml, and what the engine gets besides this process' own
            variables.
        line: gets lines of progress.
        ended: asks the forge whether a run of its pipeline has ended.
    """

    def __init__(
        self,
        stack: str,
        workspace: automation.Workspace,
        line: Line,
        ended: locking.Ended = locking.unknown,
    ) -> None:
        self._stack, self._workspace, self._line = stack, workspace, line
        self._ended = ended
        self.notes: list[str] = []
        """What was repaired, for people."""

    def take_up(self) -> list[str]:
        """Take what a killed run was creating into the state, if it exists by now.

        Returns the URNs of all that it was creating.

        Raises:
            LockedError: when that run is still at work.
        """
        state = self.interrupted()
        if state is None:
            return []
        # Only the lock tells a run that was killed from one that works.
        self.when_unlocked(self.ask_for_lock)
        found = self.look(state)
        self.when_unlocked(lambda: self.write(found))
        names = ", ".join(f"`{urn.rpartition('::')[2]}`" for urn in found.created) or "nothing"
        self.notes.append(f"An earlier run was killed; it was creating {names}.")
        return found.created

    def when_unlocked(self, operation: Callable[[], _T]) -> _T:
        """Do something that needs the lock, after releasing one whose holder is dead.

        Raises:
            LockedError: when it is held.
        """
        try:
            return operation()
        except locking.LockedError as error:
            if not self.are_orphaned(error.locks):
                raise
            self.release(error.locks)
            whose = locking.holder_names(error.locks)
            self.notes.append(f"The lock of a run that is dead was released: {whose}.")
            # Once: a lock that is found now was taken by a living run.
            return operation()

    def state(self) -> State:
        """Return the state as the backend has it."""
        # Without --show-secrets, secrets stay encrypted, in the copy too.
        state: State = json.loads(self._run("export", "stack", "export").stdout)
        return state

    def interrupted(self) -> State | None:
        """Return the state if an engine was killed in the middle of something, or is at work."""
        state = self.state()
        return state if states.is_interrupted(state.get("deployment") or {}) else None

    def ask_for_lock(self) -> None:
        """Take the lock and give it back. Raises LockedError when it is held.

        The engine takes the lock to rename a stack, and then refuses its own name.
        """
        try:
            self._run("rename", "stack", "rename", self._stack)
        except automation.StackAlreadyExistsError:
            return

    def locks(self) -> list[locking.Lock] | None:
        """Return the locks on the stack; None if there are none, or it can't be told.

        Raises:
            TpustackError: when its state would run untrusted code.
        """
        locking.mend_folder(self._environment.get(BACKEND, ""))
        states.require_trusted(self._stack, self.state())
        try:
            self.ask_for_lock()
        except locking.LockedError as error:
            return error.locks
        except TpustackError:
            # Not every backend lets a stack be renamed; one that can't be reached says so later.
            return None
        return None

    def are_orphaned(self, locks: list[locking.Lock]) -> bool:
        """Return whether the holders of all locks are dead for sure."""
        try:
            store = locking.store_of(self._environment)
            known = locking.noted_engines(store) if store else []
        except (TpustackError, OSError) as error:
            self._line(f"whether the holder of the lock lives can't be looked up: {error}")
            return False
        return bool(locks) and all(each.is_orphaned(known, self._ended) for each in locks)

    def release(self, locks: list[locking.Lock]) -> None:
        """Delete these locks, held or not, and the notes of their holders; later locks stay.

        Where the engine names none, and in other backends than folders and Google's buckets, only
        the engine can: it deletes all locks of the stack.

        Raises:
            LockedError: when one is no lock of this stack.
            TpustackError: when the backend refuses.
        """
        store = locking.store_of(self._environment)
        if store is None or not locks:
            self._run("cancel", "cancel", "--yes")
            return
        paths = [each.path(self._stack) for each in locks]
        if not all(paths):
            raise locking.LockedError(locks)
        try:
            for path in paths:
                store.delete(path)
            for each in locking.noted_engines(store):
                if any(lock.may_be_of(each) for lock in locks):
                    store.delete(each.note)
        except OSError as error:
            raise TpustackError(f"the lock can't be released: {error}") from None

    def look(self, before: State) -> Found:
        """Find out which interrupted resources exist. Changes neither cloud nor state."""
        states.require_trusted(self._stack, before)
        deployment = before["deployment"]
        created = states.being_created(deployment)
        self._line(f"a killed update was creating {plural(len(created), 'resource')}")
        with tempfile.TemporaryDirectory() as folder:
            copy = _Copy(Path(folder), self._stack, before)
            copy.write(states.with_what_may_be_there(deployment))
            end = time.monotonic() + _LONGEST_WAIT
            while True:
                self._run("refresh", "refresh", *_REFRESH, **copy.environment)
                refreshed, others = states.without_others(deployment, copy.read())
                names = [urn.rpartition("::")[2] for urn in states.passing(deployment, refreshed)]
                if not names or time.monotonic() > end:
                    break
                self._line(f"waiting for what still comes or goes: {', '.join(names)}")
                time.sleep(_PAUSE)
        for urn in others:
            name = urn.rpartition("::")[2]
            self._line(f"{name} is there, but another stack made it: it is left alone")
        return Found(
            created, before, {**before, "deployment": states.settled(deployment, refreshed)}
        )

    def write(self, found: Found) -> None:
        """Write down what was found.

        Raises:
            LockedError: when another run works on the stack.
            TpustackError: when one did since the look.
        """
        # The engine's import replaces the state, whatever it is by then.
        if self.state() != found.before:
            raise TpustackError(
                f"the state of stack {self._stack} was changed by another run while this one "
                "looked at what a killed one left. Nothing was changed; run this again"
            )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.json"
            path.write_text(json.dumps(found.after), encoding="utf-8")
            self._run("import", "stack", "import", "--file", str(path))

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._workspace.env_vars}

    def _run(self, what: str, *arguments: str, **variables: str) -> automation.CommandResult:
        try:
            return self._workspace.pulumi_command.run(
                [*arguments, "--stack", self._stack],
                self._workspace.work_dir,
                {**self._workspace.env_vars, **variables},
                self._line if what == "refresh" else None,
            )
        # Before CommandError, which it is as well: `ask_for_lock` waits for this one.
        except automation.StackAlreadyExistsError:
            raise
        except automation.ConcurrentUpdateError as error:
            raise locking.LockedError(locking.locks_in(str(error))) from None
        except automation.CommandError as error:
            raise TpustackError(
                f"pulumi {what} of stack {self._stack} failed:\n{diagnostics(str(error))}"
            ) from None


class _Copy:
    """A backend in a folder with one stack in it, as pulumi/pkg/backend/diy lays it out."""

    def __init__(self, folder: Path, stack: str, state: State) -> None:
        self.environment = {BACKEND: f"file://{folder}"}
        self._state = state
        urn = state["deployment"]["pending_operations"][0]["resource"]["urn"]
        project = urn.split("::")[1]
        self._name = f"organization/{project}/{stack}"
        self._path = folder / ".pulumi" / "stacks" / project / f"{stack}.json"
        self._path.parent.mkdir(parents=True)
        (folder / ".pulumi" / "meta.yaml").write_text("version: 1\n", encoding="utf-8")

    def write(self, deployment: Mapping[str, Any]) -> None:
        rest = {name: value for name, value in self._state.items() if name != "deployment"}
        checkpoint = {"stack": self._name, "latest": deployment}
        text = json.dumps({**rest, "checkpoint": checkpoint})
        self._path.write_text(text, encoding="utf-8")

    def read(self) -> State:
        latest: State = json.loads(self._path.read_text(encoding="utf-8"))["checkpoint"]["latest"]
        return latest
