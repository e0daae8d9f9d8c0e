"""The provider we build has the names of the Python package: else a property silently differs."""

from __future__ import annotations

import importlib
import importlib.resources
import inspect
import json
import re
import subprocess
import typing
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
from toolchain import gobuild
from toolchain.pins import MODULES, PROVIDER, PROVIDER_VERSION

types = pytest.importorskip("pulumi._types")  # the SDK's own reading of its annotations
BUILT = gobuild.cached(MODULES[PROVIDER])
pytestmark = [
    pytest.mark.skipif(BUILT is None, reason="`python tools/install.py` has built no provider"),
    # pulumi-gcp warns about its own misspelt old names as soon as a module is imported.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pulumi_gcp"),
]

Properties = Mapping[str, Mapping[str, Any]]

# Every Pulumi resource has these, whatever its schema says.
NOT_PROPERTIES = {"id", "urn"}


def provider_says(option: str) -> str:
    assert BUILT is not None
    command = [str(BUILT / PROVIDER), option]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


OURS: dict[str, Properties] = json.loads(provider_says("-property-names")) if BUILT else {}
FUNCTIONS = sorted(token for token in OURS if ":get" in token)
RESOURCES = sorted(set(OURS) - set(FUNCTIONS))


def python_module(token: str) -> ModuleType:
    return importlib.import_module(f"pulumi_gcp.{token.split(':')[1].split('/')[0]}")


def python_class(token: str, suffix: str = "") -> type:
    return typing.cast(type, getattr(python_module(token), token.rsplit(":", 1)[1] + suffix))


def source_of(token: str) -> str:
    module = python_module(token)
    name = snake(token.rsplit(":", 1)[1])
    if token in RESOURCES:
        return inspect.getsource(importlib.import_module(python_class(token).__module__))
    return inspect.getsource(importlib.import_module(f"{module.__name__}.{name}"))


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def input_classes(annotation: Any) -> set[type]:
    if isinstance(annotation, type) and types.is_input_type(annotation):
        return {annotation}
    return {cls for part in typing.get_args(annotation) for cls in input_classes(part)}


def differences(path: str, properties: Properties, cls: type) -> Iterator[str]:
    """Yield where an input class and our properties differ, in nested ones too.

    Inside a nested object Python also takes what Google computes, so there it may know more.
    """
    annotations = types.input_type_types(cls)
    python = set(types.input_type_py_to_pulumi_names(cls).values())
    known = properties if path else {n for n in properties if properties[n]["input"]}
    yield from (f"{path}{name}: only in Python" for name in python - set(known))
    for name, entry in properties.items():
        if entry["input"] and name not in python:
            yield f"{path}{name}: only in the provider"
        inner = input_classes(annotations.get(name))
        if bool(inner) != (entry["fields"] is not None and name in python):
            yield f"{path}{name}: nested in one of them"
            continue
        for nested in inner:
            yield from differences(f"{path}{name}.", entry["fields"], nested)


def test_the_provider_says_the_version_of_the_python_package() -> None:
    plugin = importlib.resources.files("pulumi_gcp").joinpath("pulumi-plugin.json").read_text()
    expected = json.loads(plugin)["version"]
    assert provider_says("-version").strip() == expected == PROVIDER_VERSION


@pytest.mark.parametrize("token", OURS)
def test_a_token_is_one_of_the_python_package(token: str) -> None:
    assert f"'{token}'" in source_of(token)


@pytest.mark.parametrize("token", RESOURCES)
def test_a_resource_takes_the_properties_of_its_python_class(token: str) -> None:
    assert not list(differences("", OURS[token], python_class(token, "Args")))


@pytest.mark.parametrize("token", RESOURCES)
def test_a_resource_gives_the_properties_of_its_python_class(token: str) -> None:
    given = set(types.resource_py_to_pulumi_names(python_class(token)).values())
    assert set(OURS[token]) - NOT_PROPERTIES == given - NOT_PROPERTIES


@pytest.mark.parametrize("token", FUNCTIONS)
def test_a_function_takes_and_gives_what_its_python_function_does(token: str) -> None:
    source = source_of(token)
    taken = set(re.findall(r"__args__\['(\w+)'\]", source))
    given = set(re.findall(r"pulumi\.get\(__(?:ret|response)__, '(\w+)'\)", source))
    ours = OURS[token]
    assert {name for name, entry in ours.items() if entry["input"]} == taken
    assert {snake(name) for name in ours} - NOT_PROPERTIES == given - NOT_PROPERTIES
