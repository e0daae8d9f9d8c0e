"""One stack on the engine, driven by Pulumi's Automation API: its operations and their events."""

import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml
from pulumi import automation
from pulumi.automation import EngineEvent, OpType, StepEventMetadata
from pulumi.automation._stack import StackInitMode

from tpustack.errors import TpustackError, UsageError, diagnostics
from tpustack.logs.diagnosis import FIX, diagnose, translated
from tpustack.recovery import locks, repair
from tpustack.recovery.state import require_trusted

POLICY = "policy"
NOTHING = "none"
"""The digest of a state without resources."""
Line = Callable[[str], None]


@dataclass(frozen=True)
class Update:
    """What an update did.

    Attributes:
        changes: number of resources by operation (`create`, `update`, `same`, …).
    """

    changes: dict[str, int]

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

    events: "Events"
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
        return Update(self._do("up", self._stack.up, line, suppress_outputs=True).counts)

    def renew(self, urns: list[str], line: Line, replaced: Sequence[str] = ()) -> None:
        """Update some resources and what depends on them, by what the cloud has, and no others.

        `replaced` are those of them that are deleted and made again, though they are there.
        """
        options = {"refresh": True, "target": urns, "target_dependents": True}
        if replaced:
            options["replace"] = list(replaced)
        self._do("up", self._stack.up, line, suppress_outputs=True, **options)

    def destroy(self, line: Line) -> None:
        """Delete everything."""
        self._do("destroy", self._stack.destroy, line)

    def refresh(self, line: Line) -> dict[str, int]:
        """Bring the state up to date; return the number of resources by operation."""
        return self._do("refresh", self._stack.refresh, line).counts

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        with explained("output", self.name):
            return dict(json.loads(self._run("stack", "output", "--json", "--show-secrets")))

    def resources(self) -> list[dict[str, Any]]:
        """Return the resources in the stack's state."""
        with explained("export", self.name):
            return list((self._stack.export_stack().deployment or {}).get("resources") or [])

    def copy_to(self, other: "Stack") -> None:
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
        return digest(self.recovery(lambda _: None).state())

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

    def recovery(self, line: Line, ended: locks.Ended = locks.unknown) -> repair.Recovery:
        """Return what repairs the stack's state after its engine was killed.

        `ended` asks the forge about the run of a pipeline that holds the lock.
        """
        return repair.Recovery(self.name, self._stack.workspace, line, ended)

    def _run(self, *arguments: str) -> str:
        """Return what another command of the engine's says of the stack."""
        workspace = self._stack.workspace
        command = [*arguments, "--stack", self.name]
        return workspace.pulumi_command.run(command, workspace.work_dir, workspace.env_vars).stdout

    def _require_trusted(self) -> str:
        """Return the digest of the state, which would run nothing untrusted."""
        state = self.recovery(lambda _: None).state()
        require_trusted(self.name, state)
        return digest(state)

    def _policies(self) -> list[str] | None:
        pack = self._policy_pack
        return [str(pack)] if pack.is_dir() else None

    def _do(
        self, verb: str, operation: Callable[..., object], line: Line, **options: Any
    ) -> "Events":
        """Run an operation and return its events; a failure is raised."""
        self._require_trusted()
        events = Events()
        with explained(verb, self.name):
            operation(color="never", on_event=events.listen, on_output=line, **options)
        return events

    def _done(self, operation: Callable[..., object], line: Line, **options: Any) -> Done:
        """Run an operation and return its events; a failure is a part of what is returned."""
        state = self._require_trusted()
        events = Events()
        try:
            operation(color="never", on_event=events.listen, on_output=line, **options)
        except automation.ConcurrentUpdateError as error:
            raise locks.LockedError(locks.locks_in(str(error))) from None
        except automation.CommandError as error:
            return Done(events, reason(str(error), events.errors), state)
        return Done(events, "", state)


def digest(state: Mapping[str, Any]) -> str:
    """Return the digest of an exported state; NOTHING if no resource is in it."""
    deployment = state.get("deployment") or {}
    if not deployment.get("resources") and not deployment.get("pending_operations"):
        return NOTHING
    return hashlib.sha256(json.dumps(deployment, sort_keys=True).encode()).hexdigest()


# What the engine reports.

# The parts of a replacement; the engine reports the replacement itself, too.
_PARTS = {OpType.CREATE_REPLACEMENT, OpType.DELETE_REPLACED, OpType.DISCARD_REPLACED}
_NOTHING = {OpType.SAME, OpType.REFRESH, OpType.READ, *_PARTS}
# The provider's own copies of labels.
_COMPUTED = ("effectiveLabels", "pulumiLabels")
# Where the provider's outputs have the power state, and the states of what is off.
_POWER = {"gcp:compute/instance:Instance": "currentStatus", "gcp:tpu/v2Vm:V2Vm": "state"}
_OFF = ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED", "PREEMPTED", "HIDDEN")
_LABELS = "labelFingerprint"
# What the engine keeps for itself: the stack, its providers.
_OURS = "pulumi:"
_COLOR = re.compile(r"<\{%.*?%\}>")


@dataclass(frozen=True)
class Change:
    """One resource that changes, or that has changed.

    Attributes:
        operation: the engine's word: `create`, `update`, `replace`, `delete` …
        properties: paths of what differs; their values may be secret, and are not kept.
        because: paths of what forces a replacement.
    """

    operation: str
    type: str
    name: str
    properties: tuple[str, ...] = ()
    because: tuple[str, ...] = ()


@dataclass(frozen=True)
class Violation:
    """A resource that breaks a rule of the policy pack."""

    rule: str
    level: str
    resource: str
    message: str

    @property
    def mandatory(self) -> bool:
        """Return whether the violation stops the run."""
        return self.level == "mandatory"


class Events:
    """Listens to one operation."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.errors: list[str] = []
        self.counts: dict[str, int] = {}
        """Number of resources by operation."""
        self._changes: dict[str, Change] = {}
        self._failed: dict[str, Change] = {}
        self._noticed: dict[str, Change] = {}

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return what changes, or has changed, sorted by type and name; nothing that failed."""
        done = (each for urn, each in self._changes.items() if urn not in self._failed)
        return tuple(sorted(done, key=_by_type))

    @property
    def failed(self) -> tuple[Change, ...]:
        """Return what was to change and failed, sorted by type and name."""
        return tuple(sorted(self._failed.values(), key=_by_type))

    @property
    def noticed(self) -> tuple[Change, ...]:
        """Return what a refresh read that an update would not undo, and no setting says."""
        return tuple(sorted(self._noticed.values(), key=_by_type))

    def listen(self, event: EngineEvent) -> None:
        """Record one event."""
        if event.resource_pre_event:
            self._note(event.resource_pre_event.metadata)
        # A refresh knows what has changed only after it has read the resource.
        if event.res_outputs_event:
            self._note(event.res_outputs_event.metadata)
            self._notice(event.res_outputs_event.metadata)
        if event.res_op_failed_event:
            step = event.res_op_failed_event.metadata
            self._failed[step.urn] = _change(step)
        if event.policy_event:
            policy = event.policy_event
            resource = (policy.resource_urn or "").rpartition("::")[2]
            violation = Violation(
                policy.policy_name, policy.enforcement_level, resource, _plain(policy.message)
            )
            if violation not in self.violations:
                self.violations.append(violation)
        if event.summary_event:
            changes = event.summary_event.resource_changes
            self.counts = {str(operation): number for operation, number in changes.items()}
        if event.diagnostic_event and event.diagnostic_event.severity == "error":
            self.errors.append(_plain(event.diagnostic_event.message))

    def _notice(self, step: StepEventMetadata) -> None:
        old = (step.old and step.old.outputs) or {}
        new = (step.new and step.new.outputs) or {}
        seen = []
        # Where the settings say that it runs, an update starts it.
        power = None if old.get("desiredStatus") else _POWER.get(step.type)
        if power and new.get(power) in _OFF:
            seen.append(f"{power}: {new[power]}")
        # Labels themselves come masked; the fingerprint is that of all labels, also of others'.
        if old.get(_LABELS) and new.get(_LABELS) and old[_LABELS] != new[_LABELS]:
            seen.append("labels")
        if seen:
            name = step.urn.rpartition("::")[2]
            self._noticed[step.urn] = Change("update", step.type, name, tuple(seen))

    def _note(self, step: StepEventMetadata) -> None:
        if step.op in _NOTHING or step.type.startswith(_OURS):
            return
        before = self._changes.get(step.urn)
        if before is None or before.operation != "replace":
            self._changes[step.urn] = _change(step)


def _change(step: StepEventMetadata) -> Change:
    name = step.urn.rpartition("::")[2]
    differences = step.detailed_diff or {}
    properties = [path for path in sorted(differences) if not path.startswith(_COMPUTED)]
    properties = properties or sorted(step.diffs or [])
    because = sorted(path for path, kind in differences.items() if "replace" in kind.diff_kind)
    if step.op is OpType.REPLACE and not because:
        because = sorted(step.keys or [])
    return Change(step.op.value, step.type, name, tuple(properties), tuple(because))


def _by_type(change: Change) -> tuple[str, str]:
    return change.type, change.name


def _plain(text: str) -> str:
    return _COLOR.sub("", text).strip()


# Why an operation failed.

# What follows from an error, or repeats it in other words.
_REPEATS = re.compile(
    r"an unhandled error occurred: program exited|expected resource operations for .* none were"
    r"|sdk-v2/provider|update failed$"
)


@contextmanager
def explained(verb: str, stack: str) -> Iterator[None]:
    """Turn the engine's errors within the block into one message about `pulumi VERB`.

    Raises:
        UsageError: when the backend has no such stack.
        TpustackError: when the engine fails, with its diagnostics.
    """
    what = f"pulumi {verb} of stack {stack}"
    try:
        yield
    except automation.StackNotFoundError:
        raise UsageError(
            f"{what}: the backend has no such stack; `pulumi up --stack {stack}` makes it"
        ) from None
    except automation.CommandError as error:
        raise TpustackError(with_fixes(f"{what} failed:\n{diagnostics(str(error))}")) from None


def reason(message: str, errors: Sequence[str] = ()) -> str:
    """Return why a command failed: the engine's own errors, or what it wrote to stderr."""
    if own := [error for error in dict.fromkeys(errors) if not _REPEATS.match(error)]:
        return with_fixes("\n".join(own))
    _, _, written = message.rpartition("\n stderr:")
    lines = [line.removeprefix("error: ") for line in written.strip().splitlines()]
    return with_fixes("\n".join(lines) or message.strip())


def with_fixes(text: str) -> str:
    """Return what the engine said, followed by the fixes of Google's errors in it."""
    found = dict.fromkeys(finding.known for finding in diagnose("", text).findings)
    lines = [text]
    # The program prints them, too (infra/tpu_infra/advice.py).
    for known in (one for one in found if one.fix not in text):
        chinese = translated(known)
        lines += [*([f"{FIX}{chinese[1]}"] if chinese else []), f"Fix: {known.fix}."]
    return "\n".join(lines)
