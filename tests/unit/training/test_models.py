from __future__ import annotations

from pathlib import Path

import pytest

from tpu_training.errors import InputError
from tpu_training.models.params import Params, build_params, describe_params
from tpu_training.models.registry import BUILT_IN, load_model

OWN = """
from dataclasses import dataclass
from tpu_training.models import params as base

@dataclass(frozen=True, kw_only=True)
class Params(base.Params):
    width: int = base.param(7, "neurons in the hidden layer", 1, 100)

def create_model(params, spec, seed):
    ...
"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_model_has_a_name_params_and_a_function_that_creates_it(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert isinstance(build_params({}, [], (), model.params), Params)
    assert callable(model.create_model)


def test_a_file_of_the_users_own_adds_parameters_with_hints_and_help(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    model = load_model(str(tmp_path / "own.py"))
    assert model.own
    params = build_params({"width": 9}, [("epochs", "2")], (), model.params)
    assert (params.width, params.epochs) == (9, 2)  # type: ignore[attr-defined]
    assert "--width=7" in describe_params(model.params)
    with pytest.raises(InputError, match="--widht: unknown; did you mean --width"):
        build_params({}, [("widht", "9")], (), model.params)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "SyntaxError"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("", "lacks a function `create_model"),
        ("class Params: ...", "lacks a dataclass `Params`.* and a function `create_model"),
        (OWN.partition("def")[0], "lacks a function `create_model"),
    ],
)
def test_a_file_without_a_model_is_refused_with_what_it_lacks(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(InputError, match=words):
        load_model(str(tmp_path / "own.py"))


def test_a_model_that_does_not_exist_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="did you mean mnist_cnn"):
        load_model("mnist_cn")
    with pytest.raises(InputError, match="no such file"):
        load_model("nowhere/own.py")
