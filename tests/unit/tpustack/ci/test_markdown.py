from __future__ import annotations

import json

import pytest

from tpu_infra.catalog import Catalog
from tpu_infra.settings.parse import parse
from tpustack.ci.deployment import cost_change
from tpustack.ci.result import (
    LONGEST,
    CostChange,
    Outcome,
    Result,
    failed,
    markdown,
    marker,
    results_document,
    worst,
)
from tpustack.engine.stack import Change, Violation

REPLACED = Change("replace", "gcp:tpu/v2Vm:V2Vm", "tpu", ("zone",), ("zone",))
CHANGED = Change("update", "gcp:compute/instance:Instance", "vm", ("labels.team",))
RULE = Violation("cost-ceiling", "mandatory", "tpu", "costs $99\nan hour")


def test_a_comment_has_changes_replacements_cost_and_policy_results() -> None:
    cost = CostChange("$1.00", "$2.00", "+$1.00")
    result = Result("dev", Outcome.POLICY, (REPLACED, CHANGED), (RULE,), cost)
    said = markdown("preview", result.noting("A note."))
    assert said.startswith(f"{marker('preview', 'dev')}\n")
    for part in (
        "stack `dev`: policy violation",
        "> A note.",
        "`cost-ceiling` (mandatory): costs $99 an hour",
        "**tpu**, because of `zone`",
        "~ update   gcp:compute/instance:Instance vm [labels.team]",
        "$1.00 → $2.00 (+$1.00)",
    ):
        assert part in said
    assert "**vm**" not in said


def test_failed_resources_are_not_counted_as_changes() -> None:
    failure = Change("create", "gcp:tpu/v2Vm:V2Vm", "tpu *x*")
    result = Result("dev", Outcome.FAILURE, (CHANGED,), problem="403", unfinished=(failure,))
    said = markdown("deploy", result)
    assert "1 resource changed" in said
    assert "**Failed** (1)\n\n- create `gcp:tpu/v2Vm:V2Vm` **tpu \\*x\\***" in said
    assert result.as_json()["unfinished"][0]["name"] == "tpu *x*"


def test_the_same_stack_has_the_same_marker_and_others_have_others() -> None:
    markers = {marker(*of) for of in (("preview", "dev"), ("deploy", "dev"), ("preview", "prod"))}
    assert len(markers) == 3


@pytest.mark.parametrize("changes", [100, 1_000, 5_000])
def test_a_long_comment_is_cut_where_nothing_breaks(changes: int) -> None:
    many = tuple(
        Change("create", "gcp:storage/bucketObject:BucketObject", f"{number:0200}")
        for number in range(changes)
    )
    said = markdown("preview", Result("dev", Outcome.CHANGES, many))
    assert len(said) < LONGEST
    assert said.count("\n```") % 2 == 0
    assert ("cut here" in said) == (changes > 100)


def test_a_refusal_is_shown_word_for_word() -> None:
    said = markdown("deploy", failed("dev", "no ```such``` _such_ <b>file</b>"))
    assert "```text\nno ```such``` _such_ <b>file</b>\n```" in said


def test_exit_codes_differ_and_the_worst_of_all_stacks_counts() -> None:
    codes = {outcome: outcome.exit_code for outcome in Outcome}
    assert codes[Outcome.NO_CHANGE] == 0
    # 2 is what a wrong command line ends with.
    assert len({*codes.values(), 2}) == len(codes) + 1
    assert worst([Outcome.CHANGES, Outcome.POLICY, Outcome.DRIFT]) is Outcome.POLICY
    assert worst([]) is Outcome.NO_CHANGE


def test_results_are_plain_json() -> None:
    results = [Result("dev", Outcome.CHANGES, (REPLACED,), (RULE,)), failed("prod", "no")]
    loaded = json.loads(json.dumps(results_document("preview", results, 1.234)))
    assert (loaded["outcome"], loaded["exitCode"], loaded["seconds"]) == ("failure", 1, 1.23)
    assert loaded["stacks"][0]["changes"][0]["because"] == ["zone"]
    assert loaded["stacks"][1]["violations"] is None


def stack_file(machine: str) -> str:
    return json.dumps(
        {
            "config": {
                "gcp:project": "some-project",
                "tpu-stack:zone": "us-central1-b",
                "tpu-stack:tpu": {"acceleratorType": "v2-8"},
                "tpu-stack:vm": {"machineType": machine},
            }
        }
    )


@pytest.mark.parametrize(
    ("before", "sign"),
    [("n1-standard-16", "-"), ("n1-standard-1", "+"), ("n1-standard-2", "$0.0000")],
)
def test_the_cost_is_compared_with_that_of_the_stack_file_before(before: str, sign: str) -> None:
    after = parse(json.loads(stack_file("n1-standard-2"))["config"], "dev")
    change = cost_change("dev", stack_file(before), after, Catalog())
    assert change.difference is not None
    assert change.difference.startswith(sign)


@pytest.mark.parametrize("before", [None, "config: [", "config: {}"])
def test_a_new_or_invalid_stack_cost_nothing_before(before: str | None) -> None:
    after = parse(json.loads(stack_file("n1-standard-2"))["config"], "dev")
    change = cost_change("dev", before, after, Catalog())
    assert change.before is None
    assert change.difference == f"+{change.after}"
