"""`tpustack settings`, the page made from it, and what Pulumi.yaml declares."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import SettingsError, one_line
from tpu_infra.settings.parse import NAMESPACE, load_stack_file, parse
from tpustack.commands.reference import PROJECT, all_settings, resolved

from .conftest import REPOSITORY, Run


def test_the_page_is_what_the_settings_say(run: Run) -> None:
    page = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    assert run("settings", "--markdown").out == page, "run `make docs`"


def test_the_example_on_the_page_is_a_stack_that_is_read() -> None:
    page = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    parse(yaml.safe_load(example)["config"], "example")


def pulumi_config() -> dict[str, dict[str, Any]]:
    """The schema in the form of `config` in Pulumi.yaml, as far as that form allows.

    Pulumi takes every key without a default for required, so that a setting that may be left out
    and has no default cannot be declared; nor can a key of the provider, nor what is in a group.
    """
    schema = StackSettings.model_json_schema()
    declared: dict[str, dict[str, Any]] = {}
    for name, entry in schema["properties"].items():
        required = name in schema.get("required", ())
        whole = resolved(entry, schema["$defs"])
        optional = any(way.get("type") == "null" for way in entry.get("anyOf", ()))
        default = {} if whole["type"] == "object" and not optional else whole.get("default")
        if name == PROJECT or (default is None and not required):
            continue
        declared[f"{NAMESPACE}:{name}"] = {
            "type": whole["type"],
            "description": one_line(entry["description"]),
            **({} if required else {"default": default}),
        }
    return declared


def test_pulumi_yaml_declares_the_same_schema() -> None:
    declared = yaml.safe_load((REPOSITORY / "Pulumi.yaml").read_text(encoding="utf-8"))["config"]
    ours = {key: entry for key, entry in declared.items() if key.startswith("tpu-stack:")}
    assert ours == pulumi_config(), yaml.safe_dump({"config": pulumi_config()}, sort_keys=False)


def test_the_defaults_that_the_engine_injects_change_nothing() -> None:
    injected = {
        key: entry["default"] for key, entry in pulumi_config().items() if "default" in entry
    }
    for path in sorted((REPOSITORY / "stacks").glob("Pulumi.*.yaml")):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))["config"]
        assert parse({**injected, **config}, "test") == load_stack_file(path)


def test_every_setting_has_a_type_and_a_description_and_what_is_not_required_may_be_missing() -> (
    None
):
    for setting in all_settings():
        assert setting.type, setting.path
        assert len(setting.description) > 10, setting.path
    required = {setting.path for setting in all_settings() if setting.required}
    assert required == {"gcp:project", "zone", "budget.amount"}
    StackSettings.model_validate({"project": "some-project", "zone": "us-central1-b"})


def wrong_values() -> list[tuple[str, object]]:
    """For every setting with a range or choices, values just outside of it."""
    wrong: list[tuple[str, object]] = []
    for setting in all_settings():
        if setting.choices:
            wrong.append((setting.path, "nosuch"))
        if setting.minimum is not None and setting.maximum is not None:
            wrong += [(setting.path, setting.minimum - 1), (setting.path, setting.maximum + 1)]
    return wrong


@pytest.mark.parametrize(("path", "value"), wrong_values())
def test_choices_and_ranges_are_those_that_are_enforced(path: str, value: object) -> None:
    first, *rest = path.split(".")
    nested: object = value
    for part in reversed(rest):
        nested = {part.removesuffix("[]"): [nested] if part.endswith("[]") else nested}
    if isinstance(nested, dict) and first == "budget":
        nested = {"amount": 1, **nested}
    config = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-b"}
    with pytest.raises(SettingsError) as refused:
        parse({**config, f"tpu-stack:{first}": nested}, "test")
    assert [problem.setting for problem in refused.value.problems] == [path.replace("[]", "[0]")]


def test_the_text_has_each_setting_with_its_facts(run: Run) -> None:
    done = run("settings")
    assert done.code == 0
    lines = done.out.splitlines()
    assert "gcp:project  (string, required)" in lines
    assert "vm.bootDiskGib  (integer, 20 to 65536, default 50)" in lines
    assert "architecture  (string, one of vm, node, compute, default vm)" in lines
    assert "training.args  (list of string)" in lines
    assert {f"    {setting.description}" for setting in all_settings()} <= {*lines}


def test_json_has_every_setting_with_the_same_fields(run: Run) -> None:
    settings = json.loads(run("settings", "--json").out)["settings"]
    assert [setting["path"] for setting in settings] == [s.path for s in all_settings()]
    for setting in settings:
        assert set(setting) == {
            "path",
            "type",
            "required",
            "default",
            "choices",
            "minimum",
            "maximum",
            "description",
        }


def test_one_setting_or_one_group_is_looked_up_by_its_name(run: Run) -> None:
    first, *description = run("settings", "tpu.capacity").out.splitlines()
    assert first.startswith("tpu.capacity  (string, one of on-demand, spot, ")
    assert description
    (setting,) = json.loads(run("settings", "zone", "--json").out)["settings"]
    assert (setting["path"], setting["required"]) == ("zone", True)
    group = json.loads(run("settings", "vm", "--json").out)["settings"]
    assert [one["path"] for one in group] == [s.path for s in all_settings() if s.group == "vm"]
    inner = run("settings", "tpu.dataDisks").out
    assert "tpu.dataDisks[].sizeGib  (" in inner
    # As stack files have it.
    assert run("settings", "tpu-stack:tpu.dataDisks").out == inner


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("tpu.capasity", "Use tpu.capacity"),
        ("acceleratortype", "Use tpu.acceleratorType"),
        ("bukkit", "Use bucket"),
    ],
)
def test_an_unknown_setting_is_answered_with_the_nearest_names(
    name: str, cure: str, run: Run
) -> None:
    done = run("settings", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f'error: NAME: "{name}" is no setting. {cure}')


def test_two_forms_at_once_are_refused(run: Run) -> None:
    done = run("settings", "--json", "--markdown")
    assert done.code == 2
    assert "--json and --markdown exclude each other" in done.err


def test_each_setting_has_a_heading_an_anchor_and_a_line_of_facts() -> None:
    page = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\S+) \{#(?:\S+)\}\n\n((?:.+\n|\n(?!#))*)", page, re.M))
    # The budget's heading is that of its group.
    assert {*sections} == {one.path for one in all_settings()} - {"budget"}
    anchors = re.findall(r"\{#(\S+)\}$", page, re.M)
    assert len(set(anchors)) == len(anchors)
    assert {"tpu-capacity", "vm-instanceGroup-failedChecks", "gcp-project", "budget"} <= {*anchors}
    facts, _, about = sections["tpu.slices"].partition("\n\n")
    assert facts == "integer · 1 to 256 · default `1`"
    assert about.startswith("Number of TPUs")
    assert "|---" not in page
