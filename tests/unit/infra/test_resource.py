"""Resources are the SDK's, though they are declared without its classes."""

from __future__ import annotations

import ast
import inspect
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pulumi_gcp as gcp
import pytest
from pulumi import _types

from infra.components import compute, projects, resource, storage

COMPONENTS = Path(resource.__file__).parent
# By their names in the SDK and in our modules, e.g. `compute.Disk`.
KINDS: dict[str, type[resource.Resource]] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": kind
    for module in (compute, projects, storage)
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, resource.Resource) and kind.__module__ == module.__name__
}
# Handed to Pulumi, not to the provider.
FOR_PULUMI = {"opts"}
OURS = re.compile(r"(compute|projects|storage)\.[A-Z]\w+")


def calls() -> Iterator[tuple[str, set[str]]]:
    """Every resource that a component declares, and its arguments."""
    for path in sorted(COMPONENTS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and OURS.fullmatch(ast.unparse(node.func)):
                yield ast.unparse(node.func), {keyword.arg or "**" for keyword in node.keywords}


def groups(args: type[Any], seen: set[type[Any]]) -> set[type[Any]]:
    """An argument class of the SDK, and those of the groups in it."""
    if args in seen:
        return seen
    seen.add(args)
    for hint in _types.input_type_types(args).values():
        for part in parts(hint):
            if isinstance(part, type) and _types.is_input_type(part):
                groups(part, seen)
    return seen


def parts(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from parts(part)


def of_the_sdk(kind: str) -> type[Any]:
    made: type[Any] = operator.attrgetter(kind)(gcp)
    return made


def sdk_args(kind: str) -> type[Any]:
    made: type[Any] = getattr(inspect.getmodule(of_the_sdk(kind)), f"{kind.split('.')[1]}Args")
    return made


def test_components_declare_them_with_arguments_that_the_sdk_has() -> None:
    declared = list(calls())
    assert {kind for kind, _ in declared} == set(KINDS)
    for kind, arguments in declared:
        known = set(inspect.signature(of_the_sdk(kind)._internal_init).parameters)
        assert arguments - FOR_PULUMI <= known, kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_argument_has_the_name_that_the_sdk_gives_the_engine(kind: str) -> None:
    for group in groups(sdk_args(kind), set()):
        for snake, camel in _types.input_type_py_to_pulumi_names(group).items():
            assert resource._camel(snake) == camel, group


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_resource_has_the_sdks_type_and_secrets(kind: str) -> None:
    source = inspect.getsource(of_the_sdk(kind))
    assert f"'{KINDS[kind].token()}'" in source
    secret = re.search(r"additional_secret_outputs=(\[.*?\])", source)
    assert KINDS[kind].secret_outputs() == (ast.literal_eval(secret[1]) if secret else [])
    assert re.findall(r"pulumi\.Output\.secret\((\w+)\)", source) == list(KINDS[kind].secrets)
    assert "pulumi.Alias(" not in source


def test_keys_of_labels_stay_as_they_are_and_arguments_without_a_value_are_left_out() -> None:
    assert resource._in_camel_case(
        {
            "machine_type": "n1-standard-2",
            "labels": {"cost_center": "audio"},
            "network_interfaces": [{"access_configs": [{}]}],
            "tags": None,
        }
    ) == {
        "machineType": "n1-standard-2",
        "labels": {"cost_center": "audio"},
        "networkInterfaces": [{"accessConfigs": [{}]}],
    }
