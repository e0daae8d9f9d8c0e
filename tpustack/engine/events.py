"""Collects what the engine reports while it works."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pulumi.automation import EngineEvent, OpType, StepEventMetadata

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
        type: Pulumi's type token.
        name: its name in the program.
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
    differences: Mapping[str, object] = step.detailed_diff or {}
    properties = [path for path in sorted(differences) if not path.startswith(_COMPUTED)]
    properties = properties or sorted(step.diffs or [])
    because = sorted(
        path for path, kind in (step.detailed_diff or {}).items() if "replace" in kind.diff_kind
    )
    if step.op is OpType.REPLACE and not because:
        because = sorted(step.keys or [])
    return Change(step.op.value, step.type, name, tuple(properties), tuple(because))


def _by_type(change: Change) -> tuple[str, str]:
    return change.type, change.name


def _plain(text: str) -> str:
    return _COLOR.sub("", text).strip()
