from __future__ import annotations

import dataclasses
from typing import get_type_hints

import pytest
from hypothesis import given, strategies as st

from tpu_training.errors import InputError, ParamsError
from tpu_training.models.params import (
    Params,
    build_params,
    describe_params,
    field_problems,
    param,
)

FIELDS = {field.name: field for field in dataclasses.fields(Params)}
TYPES = get_type_hints(Params)


@st.composite
def allowed(draw: st.DrawFn) -> tuple[str, object]:
    """A parameter's name and a value in its range."""
    name = draw(st.sampled_from(sorted(FIELDS)))
    metadata = FIELDS[name].metadata
    low, high = metadata["low"], metadata["high"]
    if TYPES[name] is bool:
        return name, draw(st.booleans())
    if TYPES[name] is str:
        words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)
        return name, draw(st.sampled_from(metadata["choices"]) if metadata["choices"] else words)
    if TYPES[name] is int:
        return name, draw(st.integers(int(low), int(high)))
    return name, draw(st.floats(low, high))


@given(allowed())
def test_a_value_in_range_arrives_from_the_command_line_and_from_a_file(
    setting: tuple[str, object],
) -> None:
    name, value = setting
    from_flag = build_params({}, [(name.replace("_", "-"), str(value))])
    from_file = build_params({name: value}, [])
    assert getattr(from_flag, name) == getattr(from_file, name) == value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Params):
    skip: bool = param(False, "of a layer")
    limit: int | None = param(None, "of a layer", 1, 9)
    sizes: tuple[int, ...] = param((1, 2), "of layers", 1, 9)
    names: tuple[str, ...] = param((), "of layers", choices=("a", "b"))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("skip", "true", True),
        ("limit", "none", None),
        ("limit", "3", 3),
        ("sizes", "3,4,5", (3, 4, 5)),
        ("sizes", "", ()),
        ("names", "b", ("b",)),
    ],
)
def test_parameters_may_be_bool_none_and_tuples(name: str, text: str, value: object) -> None:
    assert field_problems(Own) == []
    listed = list(value) if isinstance(value, tuple) else value
    for params in (
        build_params({}, [(name, text)], kind=Own),
        build_params({name: listed}, [], kind=Own),
    ):
        assert getattr(params, name) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("skip", "1", "--skip=1: expected true or false"),
        ("limit", "many", "--limit=many: expected a whole number, or none"),
        ("limit", "10", "--limit=10: must be at most 9"),
        ("sizes", "3,x", "--sizes=3,x: expected a whole number; several with commas between"),
        ("sizes", "3,0", "--sizes=3,0: must be at least 1"),
        ("names", "c", "--names=c: expected one of a, b"),
    ],
)
def test_a_wrong_one_of_them_is_refused_with_what_is_expected(
    name: str, text: str, words: str
) -> None:
    with pytest.raises(ParamsError) as caught:
        build_params({}, [(name, text)], kind=Own)
    assert words in str(caught.value)


def test_the_command_line_wins_over_the_file() -> None:
    assert build_params({"epochs": 5, "seed": 1}, [("epochs", "6")]).epochs == 6
    assert build_params({"epochs": 5, "seed": 1}, [("epochs", "6")]).seed == 1


@given(
    st.text(alphabet="abcdefghijklmnopqrstuvwxyz_", min_size=1).filter(lambda n: n not in FIELDS)
)
def test_an_unknown_name_is_an_error_that_quotes_it(name: str) -> None:
    with pytest.raises(ParamsError) as caught:
        build_params({}, [(name, "1")])
    assert f"--{name}: unknown" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lerning_rate", "1", "did you mean --learning_rate?"),
        ("model_dri", "x", "did you mean --model-dir?"),
        ("zzz", "1", "--help"),
        ("epochs", "many", "--epochs=many: expected a number"),
        ("epochs", "nan", "expected a number"),
        ("epochs", "0", "must be at least 0.001"),
        ("global_batch_size", "1.5", "expected a whole number"),
        ("global_batch_size", "0", "must be at least 1"),
        ("warmup_fraction", "0.95", "must be at most 0.9"),
        ("precision", "float8", "expected one of auto, float32, bfloat16"),
    ],
)
def test_an_invalid_parameter_is_refused_with_what_is_expected(
    name: str, value: str, words: str
) -> None:
    with pytest.raises(ParamsError) as caught:
        build_params({}, [(name, value)], ["tpu", "model-dir"])
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_word_in_a_file_is_no_number_as_which_yaml_reads_some() -> None:
    with pytest.raises(ParamsError, match="=620: expected a word, in quotes"):
        build_params({"profile_steps": 620}, [])


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ParamsError) as caught:
        build_params({"seed": -1, "epochs": True}, [("nope", "1"), ("learning_rate", "x")])
    assert len(caught.value.problems) == 4


@given(st.integers(1, 4096), st.integers(1, 64))
def test_a_batch_is_split_evenly_or_refused_with_sizes_that_would_do(
    size: int, replicas: int
) -> None:
    params = build_params({"global_batch_size": size}, [])
    if size % replicas == 0:
        assert params.replica_batch_size(replicas) * replicas == size
        return
    with pytest.raises(InputError, match=f"--global_batch_size={size} .* {replicas} replicas") as e:
        params.replica_batch_size(replicas)
    suggested = [int(n) for n in str(e.value).rpartition("use ")[2].split(" or ")]
    assert all(n % replicas == 0 and n > 0 for n in suggested)


def test_the_help_describes_every_parameter_with_its_default() -> None:
    text = describe_params()
    for name, field in FIELDS.items():
        assert f"  --{name}={str(field.default).replace('False', 'false')} " in text
