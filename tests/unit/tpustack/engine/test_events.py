from __future__ import annotations

from typing import Any

import pytest
from pulumi.automation import EngineEvent

from tpustack.engine.stack import Change, Events, Violation, reason

TPU, KIND = "urn:pulumi:dev::tpu-stack::gcp:tpu/v2Vm:V2Vm::tpu", "gcp:tpu/v2Vm:V2Vm"


def heard(*events: dict[str, Any]) -> Events:
    listener = Events()
    for number, event in enumerate(events):
        whole = {"sequence": number, "timestamp": 0, **event}
        listener.listen(EngineEvent.from_json(whole))
    return listener


def step(op: str, when: str = "resourcePreEvent", **more: Any) -> dict[str, Any]:
    metadata = {"op": op, "urn": TPU, "type": KIND, "provider": "p", **more}
    return {when: {"metadata": metadata, "planning": True, "status": 0, "steps": 0}}


def diff(**kinds: str) -> dict[str, Any]:
    return {path: {"diffKind": kind, "inputDiff": True} for path, kind in kinds.items()}


def test_a_replacement_is_one_change_with_its_reason() -> None:
    differences = diff(zone="update-replace", labels="update", effectiveLabels="update")
    events = heard(
        step("create-replacement", detailedDiff=differences),
        step("replace", detailedDiff=differences),
        step("delete-replaced"),
    )
    assert events.changes == (Change("replace", KIND, "tpu", ("labels", "zone"), ("zone",)),)


def test_a_replacement_without_a_detailed_difference_has_its_keys_as_reason() -> None:
    (change,) = heard(step("replace", keys=["zone"], diffs=["zone", "labels"])).changes
    assert (change.because, change.properties) == (("zone",), ("labels", "zone"))


def test_what_a_refresh_finds_is_known_afterwards() -> None:
    events = heard(
        step("refresh"), step("update", "resOutputsEvent", detailedDiff=diff(labels="update"))
    )
    assert events.changes == (Change("update", KIND, "tpu", ("labels",)),)


def read(kind: str, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What a refresh read of a resource of which no setting differs."""
    states = {
        when: {"type": kind, "urn": TPU, "id": "i", "parent": "", "provider": "p"}
        | {"inputs": {}, "outputs": outputs}
        for when, outputs in (("old", old), ("new", new))
    }
    return step("same", "resOutputsEvent", type=kind, **states)


VM = "gcp:compute/instance:Instance"


@pytest.mark.parametrize(
    ("kind", "old", "new", "seen"),
    [
        (VM, {"currentStatus": "RUNNING"}, {"currentStatus": "TERMINATED"}, True),
        # An earlier refresh has it in the state already.
        (VM, {"currentStatus": "TERMINATED"}, {"currentStatus": "TERMINATED"}, True),
        (VM, {"currentStatus": "TERMINATED"}, {"currentStatus": "RUNNING"}, False),
        # An update starts it.
        (VM, {"desiredStatus": "RUNNING"}, {"currentStatus": "TERMINATED"}, False),
        (KIND, {"state": "READY"}, {"state": "STOPPED"}, True),
        (KIND, {"state": "READY"}, {"state": "READY"}, False),
        (VM, {"labelFingerprint": "a"}, {"labelFingerprint": "b"}, True),
        (VM, {"labelFingerprint": "a"}, {"labelFingerprint": "a"}, False),
        ("gcp:storage/bucket:Bucket", {"state": "READY"}, {"state": "STOPPED"}, False),
    ],
)
def test_a_refresh_notices_what_is_off_and_what_labels_were_added(
    kind: str, old: dict[str, Any], new: dict[str, Any], seen: bool
) -> None:
    events = heard(read(kind, old, new))
    assert events.changes == ()
    assert bool(events.noticed) is seen


def test_failed_resources_are_not_changes() -> None:
    tried = step("create", urn=f"{TPU}-2")
    events = heard(
        step("create"),
        tried,
        step("create", "resOpFailedEvent", urn=f"{TPU}-2"),
        step("create", "resOutputsEvent"),
    )
    assert [change.name for change in events.changes] == ["tpu"]
    assert [change.name for change in events.failed] == ["tpu-2"]


def test_a_replacement_that_only_deleted_has_failed() -> None:
    events = heard(
        step("delete-replaced", "resOutputsEvent"),
        step("replace"),
        step("create-replacement", "resOpFailedEvent"),
    )
    assert events.changes == ()
    assert [change.operation for change in events.failed] == ["create-replacement"]


def test_unchanged_and_internal_resources_are_not_changes() -> None:
    own = step("create", type="pulumi:pulumi:Stack")
    assert heard(step("same"), step("read"), own).changes == ()


def test_a_violation_is_heard_once_and_without_colors() -> None:
    said = {
        "policyEvent": {
            "policyName": "cost-ceiling",
            "enforcementLevel": "mandatory",
            "resourceUrn": TPU,
            "message": "<{%reset%}>too dear<{%reset%}>\n",
        }
    }
    expected = Violation("cost-ceiling", "mandatory", "tpu", "too dear")
    assert heard(said, said).violations == [expected]


def test_only_errors_are_kept_of_all_diagnostics() -> None:
    said = [{"diagnosticEvent": {"severity": s, "message": s}} for s in ("debug", "info", "error")]
    assert heard(*said).errors == ["error"]


@pytest.mark.parametrize(
    ("message", "errors", "expected"),
    [
        # What follows from an error says nothing more.
        (
            "x",
            ["quota", "update failed", "expected resource operations for a but none were seen"],
            "quota",
        ),
        ("\n code: 255\n stdout: \n stderr: error: no passphrase\n", [], "no passphrase"),
        ("\n code: 255\n stdout: \n stderr: error: odd\n", ["update failed"], "odd"),
    ],
)
def test_a_failure_has_the_engines_own_words(
    message: str, errors: list[str], expected: str
) -> None:
    assert reason(message, errors) == expected
