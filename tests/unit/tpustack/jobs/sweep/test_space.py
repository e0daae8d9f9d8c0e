"""What a sweep may vary, and how it comes into the command."""

from __future__ import annotations

import pytest

from tpustack.errors import UsageError
from tpustack.jobs.sweep import Parameter, Value, command_with, space_of


def test_a_parameter_is_a_range_or_a_choice() -> None:
    assert space_of(["a=1e-4..1e-1:log", "b=16..256", "c=-1..1.5", "d=adam,lamb"]) == (
        Parameter("a", 1e-4, 1e-1, is_log=True),
        Parameter("b", 16, 256),
        Parameter("c", -1.0, 1.5),
        Parameter("d", choices=("adam", "lamb")),
    )
    assert isinstance(space_of(["b=16..256"])[0].low, int)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rate", "it names no parameter"),
        ("1=2..3", "it names no parameter"),
        ("a=", "neither a range nor a list"),
        ("a=x", "neither a range nor a list"),
        ("a=x,x", "neither a range nor a list"),
        ("a=x,y:log", "neither a range nor a list"),
        ("a=1..b", "its ends are no numbers"),
        ("a=2..1", "its first end must be less"),
        ("a=1..inf", "its first end must be less"),
        ("a=0..1:log", "begins above 0"),
    ],
)
def test_a_malformed_parameter_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        space_of([text])


def test_all_malformed_parameters_are_reported_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        space_of(["a=1..2", "a=1..3", "b"])
    assert len(str(refused.value).splitlines()) == 2


def test_values_replace_placeholders_or_are_appended_as_options() -> None:
    values: dict[str, Value] = {"rate": 0.01, "kind": "a b"}
    assert command_with("x --lr {rate} ${rate}", values) == "x --lr 0.01 ${rate} --kind='a b'"


def test_values_are_short_and_stay_in_their_range() -> None:
    one = Parameter("a", 1e-4, 0.12345678)
    assert one.rounded(0.0012345678) == 0.00123457
    assert one.rounded(0.12345678) == 0.12345678
