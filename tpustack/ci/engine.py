"""The engine as the pipeline drives it: several stacks side by side, every event heard."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pulumi import automation

from tpustack.ci.events import Events
from tpustack.ci.folder import mend
from tpustack.ci.locks import LockedError, locks_in
from tpustack.errors import TpustackError
from tpustack.recovery import BACKEND, Recovery

POLICY = "policy"
Line = Callable[[str], None]


@dataclass(frozen=True)
class Done:
    """What the engine said about an operation; `failure` is empty if it went well."""

    events: Events
    failure: str


class _Workspace(automation.LocalWorkspace):
    def select_stack(self, stack_name: str) -> None:
        """Leaves the stack that the user selected as it is; each command is told its stack."""


class Pipeline:
    """`pulumi` on the stacks of a project.

    Args:
        root: the folder of Pulumi.yaml.
        environment: what the engine gets beside this process' own variables.
    """

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.root = root
        self.environment = dict(environment)
        # The Automation API looks the `pulumi` binary up on this process' own PATH.
        os.environ["PATH"] = self.environment.get("PATH", os.environ["PATH"])
        self._workspace = _Workspace(work_dir=str(root), env_vars=self.environment)

    def backend_elsewhere(self, folder: Path) -> Pipeline:
        """The same project with an empty state in `folder`."""
        return Pipeline(self.root, {**self.environment, BACKEND: f"file://{folder}"})

    def stacks(self) -> dict[str, datetime | None]:
        """The stacks that the backend has, and when each was last updated (UTC)."""
        mend(self.environment.get(BACKEND) or os.environ.get(BACKEND, ""))
        try:
            found = self._workspace.list_stacks()
        except automation.CommandError as error:
            raise TpustackError(f"the backend can't be read: {reason(str(error))}") from None
        return {
            each.name: each.last_update and each.last_update.replace(tzinfo=timezone.utc)
            for each in found
        }

    def create(self, stack: str) -> None:
        """Make an empty stack."""
        try:
            self._workspace.create_stack(stack)
        except automation.CommandError as error:
            raise TpustackError(reason(str(error))) from None

    def copy(self, stack: str, to: Pipeline) -> None:
        """Make a stack with the same state in another backend."""
        try:
            state = self._stack(stack).export_stack()
            if stack not in to.stacks():
                to.create(stack)
            to._stack(stack).import_stack(state)
        except automation.CommandError as error:
            raise TpustackError(f"its state can't be moved: {reason(str(error))}") from None

    def remove(self, stack: str) -> None:
        """Take an empty stack out of the backend; its settings file is left alone."""
        try:
            self._workspace.remove_stack(stack, preserve_config=True)
        except automation.CommandError as error:
            raise TpustackError(reason(str(error))) from None

    def tags(self, stack: str) -> dict[str, str]:
        """What was noted about a stack."""
        return dict(self._workspace.list_tags(stack))

    def tag(self, stack: str, **tags: str) -> None:
        """Note something about a stack."""
        for key, value in tags.items():
            self._workspace.set_tag(stack, key, value)

    def preview(self, stack: str, plan: Path, line: Line, *, refresh: bool) -> Done:
        """What `up` would do, by the policies too; its plan goes to the file `plan`."""
        return self._run(
            lambda events: self._stack(stack).preview(
                color="never",
                on_event=events.listen,
                on_output=line,
                plan=str(plan),
                policy_packs=self._policies(),
                refresh=refresh,
            )
        )

    def up(self, stack: str, plan: Path, line: Line) -> Done:
        """Do what the file `plan` says, and nothing else."""
        return self._run(
            lambda events: self._stack(stack).up(
                color="never",
                on_event=events.listen,
                on_output=line,
                plan=str(plan),
                policy_packs=self._policies(),
                suppress_outputs=True,
            )
        )

    def drift(self, stack: str, line: Line) -> Done:
        """What differs between state and cloud; writes neither."""
        done = self._run(
            lambda events: self._stack(stack).preview_refresh(
                color="never", expect_no_changes=True, on_event=events.listen, on_output=line
            )
        )
        return done if not done.events.changes else Done(done.events, "")

    def refresh(self, stack: str, line: Line) -> Done:
        """Write what the cloud has into the state."""
        return self._run(
            lambda events: self._stack(stack).refresh(
                color="never", on_event=events.listen, on_output=line
            )
        )

    def destroy(self, stack: str, line: Line) -> Done:
        """Delete everything, except what is protected."""
        return self._run(
            lambda events: self._stack(stack).destroy(
                color="never", exclude_protected=True, on_event=events.listen, on_output=line
            )
        )

    def state(self, stack: str) -> dict[str, Any]:
        """The stack's state. Its resources are in `resources`."""
        try:
            return dict(self._stack(stack).export_stack().deployment or {})
        except automation.CommandError as error:
            raise TpustackError(f"its state can't be read: {reason(str(error))}") from None

    def recovery(self, stack: str, line: Line) -> Recovery:
        """What makes the state of a stack right whose engine was killed."""
        return Recovery(stack, self._workspace, line)

    def release(self, stack: str) -> None:
        """Delete the locks on a stack."""
        try:
            self._stack(stack).cancel()
        except automation.CommandError as error:
            raise TpustackError(f"its lock can't be released: {reason(str(error))}") from None

    def _stack(self, stack: str) -> automation.Stack:
        return automation.Stack.select(stack, self._workspace)

    def _policies(self) -> list[str] | None:
        pack = self.root / POLICY
        return [str(pack)] if pack.is_dir() else None

    def _run(self, operation: Callable[[Events], object]) -> Done:
        events = Events()
        try:
            operation(events)
        except automation.ConcurrentUpdateError as error:
            raise LockedError(locks_in(str(error))) from None
        except automation.CommandError as error:
            return Done(events, reason(str(error), events.errors))
        return Done(events, "")


def reason(message: str, errors: Sequence[str] = ()) -> str:
    """Why a command failed: the engine's own diagnostics, or what it wrote to stderr."""
    if told := [error for error in dict.fromkeys(errors) if not _REPEATS.match(error)]:
        return "\n".join(told)
    _, _, said = message.rpartition("\n stderr:")
    lines = [line.removeprefix("error: ") for line in said.strip().splitlines()]
    return "\n".join(lines) or message.strip()


# What follows from an error, or says it once more, in other words.
_REPEATS = re.compile(
    r"an unhandled error occurred: program exited|expected resource operations for .* none were"
    r"|sdk-v2/provider|update failed$"
)
