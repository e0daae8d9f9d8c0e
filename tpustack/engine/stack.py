"""One stack on the real engine, driven by Pulumi's Automation API."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from pulumi import automation
from pulumi.automation._stack import StackInitMode

from tpustack.engine.events import Events
from tpustack.engine.failure import explained, reason
from tpustack.recovery.killed_update import Recovery
from tpustack.recovery.locks import Ended, LockedError, locks_in, unknown
from tpustack.recovery.trusted import require_trusted

POLICY = "policy"
NOTHING = "none"
"""The digest of a state without resources."""
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
    """The engine's report on an operation.

    Attributes:
        events: what it did.
        failure: why it failed; empty if it succeeded.
        state: the digest of the state that it began with.
    """

    events: Events
    failure: str
    state: str = ""


class _Stack(automation.Stack):
    """Without the three commands that follow each operation and take half a second each."""

    def outputs(self) -> automation.OutputMap:
        """Return none; `Stack.outputs` asks for them."""
        return {}

    def info(self, show_secrets: bool = True) -> automation.UpdateSummary:
        """Return nothing of the history, which takes the stack's key: its numbers are an event."""
        return automation.UpdateSummary("", datetime.now(timezone.utc), "", {}, {}, "succeeded")


class _Counts:
    """Listens for the number of resources by operation."""

    def __init__(self) -> None:
        self.changes: dict[str, int] = {}

    def listen(self, event: automation.EngineEvent) -> None:
        """Keep what the last event says."""
        if event.summary_event:
            self.changes = {
                str(name): n for name, n in event.summary_event.resource_changes.items()
            }


class Stack:
    """`pulumi` on one stack, which `Backend.stack` or `Backend.select` gives.

    All that starts the engine refuses a state that would run what is not of this checkout.
    `up`, `renew`, `destroy` and `refresh` raise TpustackError when the engine fails. `preview`,
    `deploy`, `drift`, `reread` and `clear` collect the engine's events, and report a failure in
    what they return; of these, each raises LockedError while another update is running.
    """

    def __init__(
        self, name: str, workspace: automation.Workspace, policies: Path | None = None
    ) -> None:
        self.name = name
        self._policy_pack = policies or Path(workspace.work_dir) / POLICY
        self._stack = _Stack(name, workspace, StackInitMode.SELECT)

    def up(self, line: Line) -> Update:
        """Create or update everything; `line` gets the engine's output line by line."""
        self._require_trusted()
        counts = _Counts()
        with explained("up", self.name):
            self._stack.up(
                on_output=line, on_event=counts.listen, color="never", suppress_outputs=True
            )
        return Update(counts.changes, self.outputs())

    def renew(self, urns: list[str], line: Line) -> None:
        """Update some resources and what depends on them, by what the cloud has, and no others."""
        self._require_trusted()
        with explained("up", self.name):
            self._stack.up(
                on_output=line,
                color="never",
                suppress_outputs=True,
                refresh=True,
                target=urns,
                target_dependents=True,
            )

    def destroy(self, line: Line) -> None:
        """Delete everything."""
        self._require_trusted()
        with explained("destroy", self.name):
            self._stack.destroy(on_output=line, color="never")

    def refresh(self, line: Line) -> dict[str, int]:
        """Bring the state up to date; return the number of resources by operation."""
        self._require_trusted()
        counts = _Counts()
        with explained("refresh", self.name):
            self._stack.refresh(on_output=line, on_event=counts.listen, color="never")
        return counts.changes

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        with explained("output", self.name):
            return dict(json.loads(self._run("stack", "output", "--json", "--show-secrets")))

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
        return done if not done.events.changes else replace(done, failure="")

    def reread(self, line: Line) -> Done:
        """Write what the cloud has into the state."""
        return self._done(self._stack.refresh, line)

    def clear(self, line: Line) -> Done:
        """Delete everything except what is protected."""
        return self._done(self._stack.destroy, line, exclude_protected=True)

    def state(self) -> str:
        """Return the digest of the state."""
        return digest(self.recovery(_unheard).state())

    def decrypted(
        self, ciphertexts: Sequence[str], encryption: Mapping[str, str], provider: str | None
    ) -> list[str]:
        """Return what was encrypted with the stack's key.

        Args:
            ciphertexts: secrets of the state or of a plan.
            encryption: what the key needs: `encryptionsalt` or `encryptedkey`.
            provider: the stack's `secretsprovider`; None: a passphrase.
        """
        names = [f"tpu-stack:{number}" for number in range(len(ciphertexts))]
        secure = {name: {"secure": each} for name, each in zip(names, ciphertexts, strict=True)}
        document = {**encryption, "config": secure}
        if provider:
            document["secretsprovider"] = provider
        with tempfile.TemporaryDirectory() as folder, explained("config", self.name):
            file = Path(folder) / "secrets.yaml"
            file.write_text(yaml.safe_dump(document), encoding="utf-8")
            arguments = ("--json", "--show-secrets", "--config-file", str(file))
            values = json.loads(self._run("config", *arguments))
        return [values[name]["value"] for name in names]

    def recovery(self, line: Line, ended: Ended = unknown) -> Recovery:
        """Return what repairs the stack's state after its engine was killed.

        `ended` asks the forge about the run of a pipeline that holds the lock.
        """
        return Recovery(self.name, self._stack.workspace, line, ended)

    def _run(self, *arguments: str) -> str:
        """Return what another command of the engine's says of the stack."""
        workspace = self._stack.workspace
        command = [*arguments, "--stack", self.name]
        return workspace.pulumi_command.run(command, workspace.work_dir, workspace.env_vars).stdout

    def _require_trusted(self) -> str:
        """Return the digest of the state, which would run nothing of somebody else's."""
        state = self.recovery(_unheard).state()
        require_trusted(self.name, state)
        return digest(state)

    def _policies(self) -> list[str] | None:
        pack = self._policy_pack
        return [str(pack)] if pack.is_dir() else None

    def _done(self, operation: Callable[..., object], line: Line, **options: Any) -> Done:
        state = self._require_trusted()
        events = Events()
        try:
            operation(color="never", on_event=events.listen, on_output=line, **options)
        except automation.ConcurrentUpdateError as error:
            raise LockedError(locks_in(str(error))) from None
        except automation.CommandError as error:
            return Done(events, reason(str(error), events.errors), state)
        return Done(events, "", state)


def digest(state: Mapping[str, Any]) -> str:
    """Return the digest of an exported state; NOTHING if no resource is in it."""
    deployment = state.get("deployment") or {}
    if not deployment.get("resources") and not deployment.get("pending_operations"):
        return NOTHING
    return hashlib.sha256(json.dumps(deployment, sort_keys=True).encode()).hexdigest()


def _unheard(_line: str) -> None:
    """Pass over what the engine says: nothing is done that takes time."""
