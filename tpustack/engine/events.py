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

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return what changes, or has changed, sorted by type and name."""
        return tuple(sorted(self._changes.values(), key=lambda change: (change.type, change.name)))

    def listen(self, event: EngineEvent) -> None:
        """Record one event."""
        if event.resource_pre_event:
            self._note(event.resource_pre_event.metadata)
        # A refresh knows what has changed only after it has read the resource.
        if event.res_outputs_event:
            self._note(event.res_outputs_event.metadata)
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

    def _note(self, step: StepEventMetadata) -> None:
        if step.op in _NOTHING or step.type.startswith(_OURS):
            return
        name = step.urn.rpartition("::")[2]
        differences: Mapping[str, object] = step.detailed_diff or {}
        properties = [path for path in sorted(differences) if not path.startswith(_COMPUTED)]
        properties = properties or sorted(step.diffs or [])
        because = sorted(
            path for path, kind in (step.detailed_diff or {}).items() if "replace" in kind.diff_kind
        )
        if step.op is OpType.REPLACE and not because:
            because = sorted(step.keys or [])
        change = Change(step.op.value, step.type, name, tuple(properties), tuple(because))
        before = self._changes.get(step.urn)
        if before is None or before.operation != "replace":
            self._changes[step.urn] = change


def _plain(text: str) -> str:
    return _COLOR.sub("", text).strip()
