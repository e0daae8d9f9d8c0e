"""The stacks of a project in the backend that holds their state."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from pulumi import automation

from tpustack.engine import leftovers, toolchain
from tpustack.engine.command import Pulumi
from tpustack.engine.failure import explained, reason
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError
from tpustack.project import BACKEND, root
from tpustack.recovery.folder import mend


class _Workspace(automation.LocalWorkspace):
    def select_stack(self, stack_name: str) -> None:
        """Leave the user's selection alone: every command names its stack."""

    def choose(self, stack: str) -> None:
        """Select a stack, as `pulumi stack select` does."""
        super().select_stack(stack)


class Backend:
    """`pulumi` on a project.

    Args:
        environment: what the engine gets beside this process' own variables.
        root: the folder of Pulumi.yaml.
        policies: the policy pack; None: the one of `root`.
    """

    def __init__(
        self, environment: Mapping[str, str], root: Path, policies: Path | None = None
    ) -> None:
        self.root, self._policies = root, policies
        self.environment = dict(environment)
        # The Automation API looks the `pulumi` binary up on this process' own PATH.
        os.environ["PATH"] = self.environment.get("PATH", os.environ["PATH"])
        leftovers.end_orphans(root)
        self._workspace = _Workspace(
            work_dir=str(root), env_vars=self.environment, pulumi_command=Pulumi()
        )

    def elsewhere(self, folder: Path) -> Backend:
        """Return the same project with an empty state in `folder`."""
        environment = {**self.environment, BACKEND: f"file://{folder}"}
        return Backend(environment, self.root, self._policies)

    def stack(self, name: str) -> Stack:
        """Return a stack that is there; the user's selection stays."""
        return Stack(name, self._workspace, self._policies)

    def select(self, name: str, *, create: bool = True) -> Stack:
        """Select a stack and return it.

        Args:
            name: its name; its settings are stacks/Pulumi.NAME.yaml.
            create: make it if the backend has none of this name.

        Raises:
            UsageError: when there is none and `create` is false.
        """
        with explained("select", name):
            try:
                self._workspace.choose(name)
            except automation.StackNotFoundError:
                if not create:
                    raise
                self._workspace.create_stack(name)
        return self.stack(name)

    def selected(self) -> str | None:
        """Return the stack that `pulumi stack select` chose; None without one."""
        with explained("stack ls", "(the selected one)"):
            selected = self._workspace.stack()
        return selected.name if selected else None

    def stacks(self) -> dict[str, datetime | None]:
        """Return the stacks that the backend has, and when each was last updated (UTC)."""
        mend(self.environment.get(BACKEND) or os.environ.get(BACKEND, ""))
        with _failing("the backend can't be read: "):
            found = self._workspace.list_stacks()
        return {
            each.name: each.last_update and each.last_update.replace(tzinfo=timezone.utc)
            for each in found
        }

    def create(self, stack: str) -> None:
        """Make an empty stack."""
        with _failing(""):
            self._workspace.create_stack(stack)

    def remove(self, stack: str) -> None:
        """Take an empty stack out of the backend; its settings file is left alone."""
        with _failing(""):
            self._workspace.remove_stack(stack, preserve_config=True)

    def tags(self, stack: str) -> dict[str, str]:
        """Return what was noted about a stack."""
        with _failing(""):
            return dict(self._workspace.list_tags(stack))

    def tag(self, stack: str, **tags: str) -> None:
        """Note something about a stack."""
        with _failing(""):
            for key, value in tags.items():
                self._workspace.set_tag(stack, key, value)


def users_own() -> Backend:
    """Return the project in the backend that the user logged in to; find or build the engine."""
    tools = toolchain.find()
    return Backend({"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}, root())


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except automation.CommandError as error:
        raise TpustackError(f"{what}{reason(str(error))}") from None
