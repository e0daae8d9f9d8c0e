"""One stack on the real engine, driven by Pulumi's Automation API."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulumi import automation

from tpustack.ci.folder import mend
from tpustack.errors import TpustackError, UsageError, diagnostics
from tpustack.project import ROOT
from tpustack.recovery import BACKEND, Recovery

Line = Callable[[str], None]


@dataclass(frozen=True)
class Update:
    """What an update did.

    Attributes:
        changes: number of resources by operation (`create`, `update`, `same`, …).
        outputs: the stack's outputs after it.
    """

    changes: dict[str, int]
    outputs: dict[str, Any]

    @property
    def changed(self) -> int:
        """How many resources were not left as they were."""
        return sum(number for operation, number in self.changes.items() if operation != "same")


class Engine:
    """`pulumi` on one stack of this project.

    Args:
        stack: the stack's name; its settings are stacks/Pulumi.<name>.yaml.
        environment: what the engine's process gets beside this process' own variables.
        root: the folder of Pulumi.yaml.
        create: make the stack if the backend has none of this name; else that is an error.
    """

    def __init__(
        self,
        stack: str,
        environment: Mapping[str, str],
        root: Path = ROOT,
        *,
        create: bool = True,
    ) -> None:
        self.name = stack
        # The Automation API looks the `pulumi` binary up on this process' own PATH.
        os.environ["PATH"] = environment.get("PATH", os.environ["PATH"])
        with _Explained("select", stack):
            select = automation.create_or_select_stack if create else automation.select_stack
            self._stack = select(
                stack,
                work_dir=str(root),
                opts=automation.LocalWorkspaceOptions(env_vars=dict(environment)),
            )

    def up(self, line: Line) -> Update:
        """Create or update everything; `line` gets the engine's output line by line."""
        with _Explained("up", self.name):
            result = self._stack.up(on_output=line, color="never", suppress_outputs=True)
        changes = result.summary.resource_changes or {}
        counts = {str(operation): number for operation, number in changes.items()}
        return Update(counts, _values(result.outputs))

    def destroy(self, line: Line) -> None:
        """Delete everything."""
        with _Explained("destroy", self.name):
            self._stack.destroy(on_output=line, color="never")

    def urns(self) -> list[str]:
        """The URNs in the stack's state."""
        with _Explained("export", self.name):
            state = self._stack.export_stack().deployment or {}
        return [resource["urn"] for resource in state.get("resources", [])]

    def outputs(self) -> dict[str, Any]:
        """The stack's outputs."""
        with _Explained("output", self.name):
            return _values(self._stack.outputs())

    def unlock(self) -> None:
        """Release the lock that a killed engine left on the stack."""
        with _Explained("cancel", self.name):
            self._stack.cancel()

    def refresh(self, line: Line) -> dict[str, int]:
        """Compare the state with the cloud; the answer is the number of resources by operation."""
        with _Explained("refresh", self.name):
            result = self._stack.refresh(on_output=line, color="never")
        return {str(key): n for key, n in (result.summary.resource_changes or {}).items()}

    def recover(self, line: Line) -> list[str]:
        """Make a stack whose engine was killed one that `up` and `destroy` can work with.

        What the engine was creating may be there by now, without the state knowing: it is taken
        into the state if it is. The answer is the URNs of what was being created.
        """
        mend({**os.environ, **self._stack.workspace.env_vars}.get(BACKEND, ""))
        self.unlock()
        recovery = Recovery(self.name, self._stack.workspace, line)
        state = recovery.interrupted()
        if state is None:
            return []
        found = recovery.look(state)
        recovery.write(found)
        return found.created


def selected_stack(environment: Mapping[str, str], root: Path = ROOT) -> str | None:
    """The stack that `pulumi stack select` chose; None without one."""
    os.environ["PATH"] = environment.get("PATH", os.environ["PATH"])
    with _Explained("stack ls", "(the selected one)"):
        workspace = automation.LocalWorkspace(work_dir=str(root), env_vars=dict(environment))
        selected = workspace.stack()
    return selected.name if selected else None


def _values(outputs: Mapping[str, automation.OutputValue]) -> dict[str, Any]:
    return {name: output.value for name, output in outputs.items()}


class _Explained:
    def __init__(self, verb: str, stack: str) -> None:
        self._what = f"pulumi {verb} of stack {stack}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, automation.StackNotFoundError):
            raise UsageError(
                f"{self._what}: the backend has no such stack; `pulumi up` makes it"
            ) from None
        if isinstance(error, automation.CommandError):
            raise TpustackError(f"{self._what} failed:\n{diagnostics(str(error))}") from None
