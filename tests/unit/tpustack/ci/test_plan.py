from __future__ import annotations

from typing import Any

import pytest

from tpu_infra.names import MADE_FOR
from tpustack.ci.deployment import SECRET, UNKNOWN, surplus

VM = "urn:pulumi:dev::tpu-stack::tpu-stack:infra:Vm$gcp:compute/instance:Instance::vm"
BUCKET = "urn:pulumi:dev::tpu-stack::gcp:storage/bucket:Bucket"
PROVIDER = "urn:pulumi:dev::tpu-stack::pulumi:providers:gcp::default"
REPLACED = ("create-replacement", "replace", "delete-replaced")


def plan(*steps: str, urn: str = VM, **updates: object) -> dict[str, Any]:
    return {urn: {"steps": list(steps), "goal": {"inputDiff": {"updates": updates}}}}


def goal(*steps: str, **goal: object) -> dict[str, Any]:
    return {VM: {"steps": list(steps), "goal": goal}}


@pytest.mark.parametrize(
    ("fresh", "reviewed"),
    [
        (plan("update", size=2), plan("update", size=2)),
        (plan("update", key={SECRET: "a hash"}), plan("update", key={SECRET: "a hash"})),
        (plan("create", address=UNKNOWN), plan("create", address=UNKNOWN)),
        # The checkout of another job lies elsewhere.
        (
            plan("create", source={SECRET: "c4", "hash": "1f", "path": "/a/wheel"}),
            plan("create", source={SECRET: "c4", "hash": "1f", "path": "/b/wheel"}),
        ),
        (plan("same"), plan("update", size=2)),
        ({}, plan("update", size=2)),
        # What it says of its outputs does nothing.
        (goal("update", outputDiff={"a": 1}), goal("update", outputDiff={"a": 2})),
        (
            goal("update", dependencies=["a", "b"], propertyDependencies={"p": ["a", "b"]}),
            goal("update", dependencies=["b", "a"], propertyDependencies={"p": ["b", "a"]}),
        ),
        # A new stack is previewed in another backend, and so with another mark.
        (
            plan("create", labels={"tpu-stack-mark": "1b"}, description=f"{MADE_FOR}dev (1b)"),
            plan("create", labels={"tpu-stack-mark": "2c"}, description=f"{MADE_FOR}dev (2c)"),
        ),
    ],
)
def test_a_plan_may_do_what_was_reviewed_or_less(
    fresh: dict[str, Any], reviewed: dict[str, Any]
) -> None:
    assert surplus(fresh, reviewed) == []


@pytest.mark.parametrize(
    ("fresh", "reviewed"),
    [
        # A killed run has done some of it, and knows more than the preview did.
        (plan("create", address="10.0.0.1"), plan("create", address=UNKNOWN)),
        (plan("delete-replaced"), plan(*REPLACED)),
        (goal("create", provider="a::b::1"), goal("create", provider=f"a::b::{UNKNOWN}")),
        # What it was creating is there, but not all of it.
        (
            goal("update", inputDiff={"adds": {"a": 1}, "updates": {"b": 2}, "deletes": ["d"]}),
            goal("create", inputDiff={"adds": {"a": 1, "b": 2, "c": 3}}),
        ),
    ],
)
def test_the_rest_of_a_killed_run_fits_only_when_that_run_is_resumed(
    fresh: dict[str, Any], reviewed: dict[str, Any]
) -> None:
    assert surplus(fresh, reviewed, resumed=True) == []
    assert surplus(fresh, reviewed) != []


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("fresh", "reviewed", "said"),
    [
        (plan("update"), {}, "gcp:compute/instance:Instance vm: update (reviewed: nothing)"),
        (plan(*REPLACED), plan("update"), f"vm: {', '.join(REPLACED)} (reviewed: update)"),
        (plan("delete"), plan("same"), "vm: delete (reviewed: same)"),
        (
            plan("update", labels={"a": "1", "b": "2"}),
            plan("update", labels={"a": "1", "b": "3"}),
            "vm: update as reviewed, but with other labels.b",
        ),
        (
            plan("update", description="theirs"),
            plan("update", description=f"{MADE_FOR}dev (2c)"),
            "vm: update as reviewed, but with other description",
        ),
    ],
)
def test_steps_that_were_not_reviewed_are_named(
    fresh: dict[str, Any], reviewed: dict[str, Any], said: str, resumed: bool
) -> None:
    (line,) = surplus(fresh, reviewed, resumed=resumed)
    assert said in line


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    "urn",
    [
        f"{BUCKET}::x::pulumi:y",
        f"{BUCKET}::x$pulumi:providers:gcp",
        f"{BUCKET}$pulumi:providers:gcp::x",
        PROVIDER,
    ],
)
def test_resources_with_odd_names_are_compared_too(urn: str, resumed: bool) -> None:
    assert surplus(plan("delete", urn=urn), {}, resumed=resumed)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    "forged",
    [
        UNKNOWN,
        {"updates": UNKNOWN, "deletes": UNKNOWN},
        {},
        None,
        "x",
        [UNKNOWN],
        {SECRET: [], "hash": {}},
    ],
)
def test_unknown_values_in_a_plan_do_not_allow_a_replacement(forged: object, resumed: bool) -> None:
    change = {"updates": {"location": "EU"}, "deletes": ["labels"]}
    fresh = goal(*REPLACED, inputDiff=change)
    assert surplus(fresh, goal(*REPLACED, inputDiff=forged), resumed=resumed)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("now", "then"),
    [
        ({SECRET: "hash of one"}, {SECRET: "hash of another"}),
        # Nobody has decrypted them.
        ({SECRET: "1b", "ciphertext": "a"}, {SECRET: "1b", "ciphertext": "b"}),
        ({SECRET: "hash of one"}, {SECRET: "1b", "ciphertext": "b"}),
        ({SECRET: "hash of one"}, "plain"),
        # The content of a file, which was no secret.
        ({SECRET: "c4", "hash": "1f"}, {SECRET: "c4", "hash": "2e"}),
        ({SECRET: "c4", "path": "/a"}, {SECRET: "c4", "path": "/b"}),
        ({SECRET: "c4", "hash": "1f"}, {SECRET: "03", "hash": "1f"}),
    ],
)
def test_secrets_that_cannot_be_compared_count_as_different(
    now: object, then: object, resumed: bool
) -> None:
    (line,) = surplus(plan("update", key=now), plan("update", key=then), resumed=resumed)
    assert "but with other key" in line


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize(
    ("option", "now", "then"),
    [
        ("protect", False, True),
        ("provider", "urn::theirs::1", "urn::ours::1"),
        ("customTimeouts", {"delete": 1}, {}),
        ("parent", "urn::a", "urn::b"),
        ("dependencies", ["a"], ["a", "b"]),
    ],
)
def test_protection_provider_and_dependencies_are_compared(
    option: str, now: object, then: object, resumed: bool
) -> None:
    fresh, reviewed = goal("update", **{option: now}), goal("update", **{option: then})
    (line,) = surplus(fresh, reviewed, resumed=resumed)
    assert option in line


@pytest.mark.parametrize(
    "more",
    [
        {"adds": {"a": 2}},
        {"adds": {"e": 1}},
        {"updates": {"a": {"b": UNKNOWN}}},
        {"deletes": ["a"]},
        UNKNOWN,
        [UNKNOWN],
    ],
)
def test_a_resumed_creation_may_only_complete_the_reviewed_resource(more: object) -> None:
    created = goal("create", inputDiff={"adds": {"a": 1}})
    assert surplus(goal("update", inputDiff=more), created, resumed=True)


def test_the_steps_of_a_replacement_keep_their_order() -> None:
    assert surplus(plan("delete-replaced", "create-replacement"), plan(*REPLACED), resumed=True)
