from __future__ import annotations

from typing import Any

import pytest

from tpustack.ci.plan import UNKNOWN, surplus

VM = "urn:pulumi:dev::tpu-stack::tpu-stack:infra:Vm$gcp:compute/instance:Instance::vm"
PROVIDER = "urn:pulumi:dev::tpu-stack::pulumi:providers:gcp::default"
SECRET = "4dabf18193072939515e22adb298388d"


def plan(*steps: str, urn: str = VM, **updates: object) -> dict[str, Any]:
    return {urn: {"steps": list(steps), "goal": {"inputDiff": {"updates": updates}}}}


@pytest.mark.parametrize(
    ("fresh", "reviewed"),
    [
        (plan("update", size=2), plan("update", size=2)),
        # A killed run has done some of it, and knows more than the preview did.
        (plan("same"), plan("update", size=2)),
        ({}, plan("update", size=2)),
        (plan("create", address="10.0.0.1"), plan("create", address=UNKNOWN)),
        (plan("delete-replaced"), plan("create-replacement", "replace", "delete-replaced")),
        # Encrypted anew for each plan.
        (
            plan("update", key={SECRET: "1b", "ciphertext": "a"}),
            plan("update", key={SECRET: "1b", "ciphertext": "b"}),
        ),
        (plan("create", urn=PROVIDER), {}),
    ],
)
def test_what_was_reviewed_or_less_fits(fresh: dict[str, Any], reviewed: dict[str, Any]) -> None:
    assert surplus(fresh, reviewed) == []


@pytest.mark.parametrize(
    ("fresh", "reviewed", "said"),
    [
        (plan("update"), {}, "gcp:compute/instance:Instance vm: update (reviewed: nothing)"),
        (
            plan("create-replacement", "replace", "delete-replaced"),
            plan("update"),
            "vm: create-replacement, replace, delete-replaced (reviewed: update)",
        ),
        (plan("delete"), plan("same"), "vm: delete (reviewed: same)"),
        (
            plan("update", labels={"a": "1", "b": "2"}),
            plan("update", labels={"a": "1", "b": "3"}),
            "vm: update as reviewed, but with other labels.b",
        ),
    ],
)
def test_anything_else_is_named(fresh: dict[str, Any], reviewed: dict[str, Any], said: str) -> None:
    (line,) = surplus(fresh, reviewed)
    assert said in line
