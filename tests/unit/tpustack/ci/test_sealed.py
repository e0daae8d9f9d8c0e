"""A plan that one job hands to another."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.examples import examples
from tpustack.ci import deployment
from tpustack.ci.deployment import SECRET, Seal, Sealed, mismatch
from tpustack.errors import TpustackError

VM = "urn:pulumi:dev::tpu-stack::gcp:compute/instance:Instance::vm"
MADE = Seal("dev", "c1", "s1", {"encryptionsalt": "v1:salt"})


def steps(ciphertext: str) -> dict[str, Any]:
    secret = {SECRET: "1b", "ciphertext": ciphertext}
    diff = {"updates": {"metadata": {"keys": [secret]}}}
    return {VM: {"steps": ["update"], "goal": {"inputDiff": diff}}}


def read(folder: Path, ciphertext: str = "a", made: Seal = MADE) -> Sealed:
    path = folder / f"{ciphertext}.plan.json"
    path.write_text(json.dumps({"manifest": {}, "resourcePlans": steps(ciphertext)}))
    deployment.write_seal(path, made)
    return deployment.read_plan(path)


def decrypt(texts: Sequence[str], encryption: Mapping[str, str]) -> list[str]:
    assert encryption == {"encryptionsalt": "v1:salt"}
    return [{"a": "hunter2", "b": "hunter2", "c": "hunter3"}[each] for each in texts]


def test_a_sealed_plan_says_where_it_is_from(tmp_path: Path) -> None:
    made = read(tmp_path)
    assert (made.steps, made.seal) == (steps("a"), MADE)
    assert made.digest == read(tmp_path).digest != read(tmp_path, "b").digest


@pytest.mark.parametrize(("then", "fits"), [("b", True), ("c", False)])
def test_secrets_are_compared_by_hashes_that_show_nothing(
    tmp_path: Path, then: str, fits: bool
) -> None:
    now, before = deployment.comparable(read(tmp_path, "a"), read(tmp_path, then), decrypt)
    assert (deployment.surplus(now, before) == []) is fits
    again, _ = deployment.comparable(read(tmp_path, "a"), read(tmp_path, then), decrypt)
    assert again != now
    assert not re.search("hunter|ciphertext", json.dumps([now, before]))


def test_a_plan_without_secrets_asks_for_no_key(tmp_path: Path) -> None:
    plain = Sealed({VM: {"steps": ["create"]}}, MADE, "d")

    def refuse(texts: Sequence[str], encryption: Mapping[str, str]) -> list[str]:
        raise AssertionError(texts)

    assert deployment.comparable(plain, plain, refuse) == (plain.steps, plain.steps)


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"resourcePlans": {}}',
        '{"resourcePlans": [], "tpu-stack": {}}',
        '{"resourcePlans": 1, "tpu-stack": {}}',
        '{"resourcePlans": {}, "tpu-stack": {"stack": "dev", "commit": 1}}',
    ],
)
def test_unsealed_plans_are_refused_with_a_message(tmp_path: Path, forged: str) -> None:
    path = tmp_path / "dev.plan.json"
    path.write_text(forged)
    with pytest.raises(TpustackError, match="isn't a plan of `tpustack ci preview`"):
        deployment.read_plan(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from([SECRET, VM]),
    lambda each: (
        st.lists(each, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("steps", "goal", "inputDiff", "adds", "updates", "deletes", "provider"),
                    *("ciphertext", SECRET, VM, "x"),
                ]
            ),
            each,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(JSON, st.booleans())
def test_no_forged_plan_breaks_the_comparison_or_allows_a_replacement(
    tmp_path: Path, forged: object, resumed: bool
) -> None:
    path = tmp_path / "dev.plan.json"
    path.write_text(json.dumps({"resourcePlans": {VM: forged}, "tpu-stack": asdict(MADE)}))
    change = {"steps": ["replace"], "goal": {"inputDiff": {"updates": {"zone": "b"}}}}
    fresh = Sealed({VM: change}, MADE, "d")
    try:
        reviewed = deployment.read_plan(path)
    except TpustackError:
        return
    now, then = deployment.comparable(fresh, reviewed, lambda texts, _: texts)
    assert deployment.surplus(now, then, resumed=resumed)


def test_a_plan_cannot_choose_the_key_that_decrypts_it(tmp_path: Path) -> None:
    """A plan that names a key of its own would send credentials to whoever made it."""
    file = tmp_path / "Pulumi.dev.yaml"
    file.write_text("secretsprovider: gcpkms://k\nencryptedkey: e\nencryptionsalt: ''\nconfig: {}")
    assert deployment.encryption_of(file) == {"encryptedkey": "e"}


@pytest.mark.parametrize(
    ("stack", "commit", "state", "noted", "why"),
    [
        ("dev", "c1", "s1", None, ""),
        # It was carried out in part by a run that was killed.
        ("dev", "c1", "s2", "its own", ""),
        ("prod", "c1", "s1", None, "it is for stack dev"),
        ("dev", "c2", "s1", None, "for commit c1, and this is c2"),
        ("dev", "", "s1", None, "for commit c1, and this is none"),
        ("dev", "c1", "s2", None, "something else was deployed since"),
        ("dev", "c1", "s2", "another", "something else was deployed since"),
        ("dev", "c2", "s2", "its own", "for commit c1, and this is c2"),
    ],
)
def test_a_plan_is_of_one_stack_commit_and_state(
    tmp_path: Path, stack: str, commit: str, state: str, noted: str | None, why: str
) -> None:
    made = read(tmp_path)
    said = mismatch(made, stack, commit, state, made.digest if noted == "its own" else noted)
    assert (why in said) if why else not said
