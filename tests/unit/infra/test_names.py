"""Names by a pattern: as it says, within Google's limits, and never those of another stack."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tpu_infra.checks import find_problems
from tpu_infra.names import Names, names_of
from tpu_infra.settings.parse import parse

from .conftest import Run, config, context_of

EMAIL = "{}@hub-project.iam.gserviceaccount.com"
BYO: dict[str, Any] = {
    "serviceAccount": EMAIL.format("tpu"),
    "limits": {"role": "tpu_stack_limits"},
}


def of(stack: str, pattern: str, **settings: object) -> Names:
    return names_of(parse(config(namePattern=pattern, **settings), stack), stack)


def problems(root: Path, stack: str = "dev", **settings: object) -> list[str]:
    parsed = parse(config(**settings), stack)
    found = find_problems(parsed, context_of(parsed, root, stack))
    named = ("namePattern", "namePrefix", "owner", "bucket.name")
    return [str(each) for each in found if each.setting in named]


def every(names: Names) -> set[tuple[str, str]]:
    """What Google lists, with where it lists it, of a stack with all that it can have."""
    machines = {names.vm, names.vm_of_group, names.tpu, *names.tpus(12)}
    machines |= {names.machine_of_slice(names.tpu, number) for number in range(12)}
    accounts = {names.account, names.jobs_account, names.vertex_account}
    networks = {names.network, f"{names.network}-machines", f"{names.network}-iap-ssh"}
    places = {
        "machines": machines | {f"{names.vm}-boot", f"{names.vm}-0a1b2c3d", f"{names.vm}-health"},
        "accounts": accounts,
        "networks": networks,
        "buckets": {names.bucket},
        "roles": {names.limits_role},
        "logs": {names.messages_log},
    }
    return {(place, name) for place, found in places.items() for name in found}


def test_a_pattern_names_everything() -> None:
    names = of("dev", "acme-{stack}-{name}-ml")
    assert (names.vm, names.tpu, names.bucket) == (
        "acme-dev-vm-ml",
        "acme-dev-tpu-ml",
        "acme-dev-data-ml",
    )
    assert names.account == "acme-dev-sa-ml"
    assert names.tpus(2) == ("acme-dev-tpu-ml-0", "acme-dev-tpu-ml-1")
    assert names.limits_role == "acme_dev_limits_ml"
    assert names.messages_log == "projects/some-project/logs/acme-dev-messages-ml"
    assert names.prefix == "acme-dev-ml"
    assert of("dev", "{owner}-{name}-{stack}-x", owner="ada").vm == "ada-vm-dev-x"
    assert of("dev", "a-{stack}-{name}", bucket={"name": "ours"}).bucket == "ours"


def test_a_prefix_is_a_pattern_except_for_the_bucket() -> None:
    by_prefix = names_of(parse(config(namePrefix="acme-dev"), "dev"), "dev")
    by_pattern = of("dev", "acme-{stack}-{name}")
    assert by_prefix.bucket == "some-project-acme-dev"
    assert by_pattern.bucket == "acme-dev-data"
    assert replace(by_prefix, bucket="") == replace(by_pattern, bucket="")


def test_what_a_stack_declares_has_the_patterns_names(run: Run) -> None:
    jobs = {"enabled": True, "vertex": {}}
    own = {"vm": {"keepBootDisk": True}, "limits": {"idleMinutes": 30}, "jobs": jobs}
    encrypted: dict[str, Any] = {"bucket": {"encryption": {}}}
    engine, _ = run(config(namePattern="{name}-acme-{stack}-x", **own, **encrypted))
    given = {
        str(each.inputs[key])
        for each in engine.resources
        for key in ("accountId", "name", "roleId")
        if key in each.inputs and each.kind.startswith("gcp:")
    }
    objects = {each.inputs["name"] for each in engine.of("BucketObject")}
    # A key belongs to its ring, which has what is left of the pattern and random characters.
    stray = {name for name in given - objects if "acme-test-x" not in name.replace("_", "-")}
    assert stray == {"bucket"}
    assert engine.one("KeyRing") is not None
    assert "tpu-stack-" not in " ".join(given - objects)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"namePattern": "Acme_{stack}{name}"},
            'namePattern: "Acme_{stack}{name}" is not a pattern (lower-case letters, digits, '
            "{stack}, {name} and {owner}, with hyphens between them). Use one like "
            "acme-{stack}-{name}.",
        ),
        (
            {"namePattern": "acme-{kind}-{stack}"},
            'namePattern: "acme-{kind}-{stack}" is not a pattern',
        ),
        (
            {"namePattern": "acme-{stack}-x"},
            'namePattern: "acme-{stack}-x" must have {name} once, which tells the stack\'s '
            "resources apart. Use one like acme-{stack}-{name}.",
        ),
        (
            {"namePattern": "acme-{name}"},
            'namePattern: "acme-{name}" has no {stack}, so another stack\'s resources could have '
            "the same names. Add {stack}, or use namePrefix.",
        ),
        (
            {"namePattern": "{name}-acme-{stack}"},
            'namePattern: "{name}-acme-{stack}" ends in {stack}, but Google adds numbers to the '
            "names of slices, so those of stack dev could be names of stack dev-0. End it with "
            "{name} or with a word, as in {name}-{stack}-acme.",
        ),
        (
            {"namePattern": "{stack}-{name}", "owner": "ada"},
            "namePattern: \"{stack}-{name}\" has no {owner}, but owner is 'ada'. Add {owner}, or "
            "remove owner.",
        ),
        (
            {"namePattern": "{owner}-{stack}-{name}"},
            'namePattern: "{owner}-{stack}-{name}" has {owner}, but no owner is set. Set owner, or '
            "remove {owner}.",
        ),
        (
            {"namePattern": "4x4-{stack}-{name}"},
            "namePattern: \"4x4-{stack}-{name}\" makes '4x4-dev-vm', which is not a valid resource "
            "name (lower-case letters, digits and hyphens, a letter first, no hyphen last). "
            "Correct it, or rename the stack.",
        ),
        (
            {"namePattern": f"{'a' * 26}-{{stack}}-{{name}}"},
            f'namePattern: "{"a" * 26}-{{stack}}-{{name}}" gives names the wrong number of '
            f"characters: the service account {'a' * 26}-dev-sa has 33 (6 to 30). Make it, or the "
            "stack's name, 3 characters shorter.",
        ),
        (
            {"namePattern": "acme-{stack}-{name}", "namePrefix": "ours"},
            "namePattern: \"acme-{stack}-{name}\" has no effect, because namePrefix is 'ours'. "
            "Remove one of the two.",
        ),
        (
            {"namePrefix": "acme-{name}"},
            'namePrefix: "acme-{name}" is not a valid resource name',
        ),
        # Of the jobs' account, which has the longest name.
        (
            {"namePrefix": "a" * 27, "jobs": {"enabled": True}},
            f'namePrefix: "{"a" * 27}" gives names the wrong number of characters: the service '
            f"account {'a' * 27}-job has 31 (6 to 30). Set one of 3 to 26 characters.",
        ),
        (
            {"namePrefix": "a" * 55, **BYO},
            f"the VM {'a' * 55}-vm has 58 (1 to 54), the network {'a' * 55}-net has 59 (1 to 54). "
            "Set one of 1 to 50 characters.",
        ),
    ],
    ids=str,
)
def test_a_pattern_is_refused_with_what_is_wrong(
    settings: dict[str, Any], said: str, root: Path
) -> None:
    (problem,) = problems(root, **settings)
    assert said in problem


def test_all_that_is_wrong_is_said_at_once(root: Path) -> None:
    found = problems(root, namePattern="{owner}-x")
    assert [each.partition('" ')[2].split(",")[0].partition(". ")[0] for each in found] == [
        "must have {name} once",
        "has no {stack}",
        "has {owner}",
    ]


def test_long_names_are_fine_if_the_accounts_are_there_already(root: Path) -> None:
    assert problems(root, namePattern=f"{'a' * 30}-{{stack}}-{{name}}", **BYO) == []


def test_no_two_accepted_stacks_share_a_name(root: Path) -> None:
    chance = Random(33)
    stacks = ("dev", "dev-0", "dev-1", "dev-001", "dev-vm", "vm", "tpu", "data", "a", "a-tpu-0")
    parts = ("{stack}", "{name}", "acme", "vm", "0", "x")
    taken = 0
    for _ in range(300):
        pattern = "-".join(chance.sample(parts, chance.randint(2, 4)))
        good = [stack for stack in stacks if not problems(root, stack, namePattern=pattern)]
        taken += len(good) > 1
        named = {stack: every(of(stack, pattern)) for stack in good}
        for one, other in itertools.combinations(good, 2):
            assert not named[one] & named[other], (pattern, one, other)
        # No two of a stack's own share one, either.
        assert {len(found) for found in named.values()} <= {39}
    assert taken > 20
