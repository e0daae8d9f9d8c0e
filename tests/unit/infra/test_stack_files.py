"""The stack files of this repository, and how a stack file is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tpu_infra.checks import ensure_valid
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.machines import Architecture
from tpu_infra.settings.parse import load_stack_file, load_yaml, stack_name

from .conftest import REPOSITORY, context_of

STACKS = sorted((REPOSITORY / "stacks").glob("Pulumi.*.yaml"))


def in_a_project_of_ours(path: Path) -> StackSettings:
    return load_stack_file(path).model_copy(update={"project": "some-project"})


@pytest.mark.parametrize("path", STACKS, ids=stack_name)
def test_every_stack_file_passes_its_own_check(path: Path, root: Path) -> None:
    settings = in_a_project_of_ours(path)
    ensure_valid(settings, context_of(settings, root, stack_name(path)))


@pytest.mark.parametrize("stack", ["dev", "staging", "prod"])
def test_an_examples_project_is_refused_with_what_to_do(stack: str, root: Path) -> None:
    settings = load_stack_file(REPOSITORY / "stacks" / f"Pulumi.{stack}.yaml")
    with pytest.raises(SettingsError) as refusal:
        ensure_valid(settings, context_of(settings, root, stack))
    (problem,) = refusal.value.problems
    assert str(problem) == (
        f'gcp:project: "my-project-{stack}" is the placeholder of the example. Run '
        f"`pulumi config set gcp:project YOUR-PROJECT --stack {stack}`, or create a stack with "
        "`tpustack init NAME`."
    )


def test_there_is_a_stack_for_each_environment_and_each_architecture() -> None:
    assert {stack_name(path) for path in STACKS} >= {
        "local",
        "local-node",
        "dev",
        "staging",
        "prod",
    }
    local, node = (
        load_stack_file(REPOSITORY / "stacks" / f"Pulumi.{name}.yaml")
        for name in ("local", "local-node")
    )
    assert local.architecture is Architecture.VM
    assert node.architecture is Architecture.NODE


def test_production_keeps_its_bucket() -> None:
    bucket = load_stack_file(REPOSITORY / "stacks" / "Pulumi.prod.yaml").bucket
    assert bucket.protect
    assert not bucket.force_destroy


def test_a_missing_stack_file_is_refused_with_the_stacks_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text("config: {}")
    with pytest.raises(SettingsError, match=r"dve.yaml. Did you mean dev\? Existing files: dev\."):
        load_stack_file(tmp_path / "Pulumi.dve.yaml")


def test_invalid_yaml_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text("config:\n  - a: [b\n")
    with pytest.raises(SettingsError, match=r"is not valid YAML: line 3, column 1: did not"):
        load_stack_file(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 51 + "]" * 51, "nests more than 50 levels deep"),
        ("config: &a {b: *a}", "or contains itself"),
        ("a: &a [" + "x," * 200 + "]\nb: [" + "*a," * 200 + "]", "more than 20000 values"),
        ("a: 2001-13-45", "has an invalid value"),
        ("a: !!bool x", "has an invalid value"),
    ],
)
def test_a_document_that_is_too_deep_or_too_large_is_no_yaml(text: str, why: str) -> None:
    with pytest.raises(yaml.YAMLError, match=why):
        load_yaml(text)


def test_a_harmless_alias_is_read() -> None:
    assert load_yaml("a: &a {b: 1}\nc: *a") == {"a": {"b": 1}, "c": {"b": 1}}
