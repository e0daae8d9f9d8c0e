"""One stack on the real engine, driven by Pulumi's Automation API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulumi import automation

from tpustack.engine.events import Events
from tpustack.engine.failure import explained, reason
from tpustack.recovery.killed_update import Recovery
from tpustack.recovery.locks import LockedError, locks_in

POLICY = "policy"
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
        """Return how many resources the update touched."""
        return sum(number for operation, number in self.changes.items() if operation != "same")


@dataclass(frozen=True)
class Done:
    """The engine's report on an operation; `failure` is empty if it succeeded."""

    events: Events
    failure: str


class Stack:
    """`pulumi` on one stack, which `Backend.stack` or `Backend.select` gives.

    `up`, `destroy` and `refresh` raise TpustackError when the engine fails. `preview`, `deploy`,
    `drift`, `reread` and `clear` collect the engine's events, and report a failure in what they
    return; of these, each raises LockedError while another update is running.
    """

    def __init__(self, name: str, workspace: automation.Workspace) -> None:
        self.name = name
        self._stack = automation.Stack.select(name, workspace)

    def up(self, line: Line) -> Update:
        """Create or update everything; `line` gets the engine's output line by line."""
        with explained("up", self.name):
            result = self._stack.up(on_output=line, color="never", suppress_outputs=True)
        return Update(_counts(result.summary), _values(result.outputs))

    def destroy(self, line: Line) -> None:
        """Delete everything."""
        with explained("destroy", self.name):
            self._stack.destroy(on_output=line, color="never")

    def refresh(self, line: Line) -> dict[str, int]:
        """Bring the state up to date; return the number of resources by operation."""
        with explained("refresh", self.name):
            return _counts(self._stack.refresh(on_output=line, color="never").summary)

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        with explained("output", self.name):
            return _values(self._stack.outputs())

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources in the stack's state."""
        with explained("export", self.name):
            return list((self._stack.export_stack().deployment or {}).get("resources") or [])

    def copy_to(self, other: Stack) -> None:
        """Replace the state of a stack in another backend by this one's."""
        with explained("export", self.name):
            state = self._stack.export_stack()
        with explained("import", self.name):
            other._stack.import_stack(state)

    def preview(self, plan: Path, line: Line, *, refresh: bool) -> Done:
        """Find out what `up` would do, policies included; write the plan to the file `plan`."""
        options = {"plan": str(plan), "policy_packs": self._policies(), "refresh": refresh}
        return self._done(self._stack.preview, line, **options)

    def deploy(self, plan: Path, line: Line) -> Done:
        """Do what the file `plan` says, and nothing else."""
        options = {"plan": str(plan), "policy_packs": self._policies(), "suppress_outputs": True}
        return self._done(self._stack.up, line, **options)

    def drift(self, line: Line) -> Done:
        """Find what differs between state and cloud; write neither."""
        done = self._done(self._stack.preview_refresh, line, expect_no_changes=True)
        return done if not done.events.changes else Done(done.events, "")

    def reread(self, line: Line) -> Done:
        """Write what the cloud has into the state."""
        return self._done(self._stack.refresh, line)

    def clear(self, line: Line) -> Done:
        """Delete everything except what is protected."""
        return self._done(self._stack.destroy, line, exclude_protected=True)

    def recovery(self, line: Line) -> Recovery:
        """Return what repairs the stack's state after its engine was killed."""
        return Recovery(self.name, self._stack.workspace, line)

    def _policies(self) -> list[str] | None:
        pack = Path(self._stack.workspace.work_dir) / POLICY
        return [str(pack)] if pack.is_dir() else None

    def _done(self, operation: Callable[..., object], line: Line, **options: Any) -> Done:
        events = Events()
        try:
            operation(color="never", on_event=events.listen, on_output=line, **options)
        except automation.ConcurrentUpdateError as error:
            raise LockedError(locks_in(str(error))) from None
        except automation.CommandError as error:
            return Done(events, reason(str(error), events.errors))
        return Done(events, "")


def _counts(summary: automation.UpdateSummary) -> dict[str, int]:
    return {str(operation): n for operation, n in (summary.resource_changes or {}).items()}


def _values(outputs: Mapping[str, automation.OutputValue]) -> dict[str, Any]:
    return {name: output.value for name, output in outputs.items()}
