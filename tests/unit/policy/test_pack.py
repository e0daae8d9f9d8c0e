"""The pack as the engine and its users see it."""

from __future__ import annotations

from importlib.machinery import PathFinder
from pathlib import Path

import pytest
import yaml
from pulumi_policy.proxy import UNKNOWN_STRING_VALUE, unknown_checking_proxy

from tpu_policy.resource import UNKNOWN, Resource, plain
from tpu_policy.rules import RULES, Rule

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cost.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_option_has_a_description_and_a_default_of_its_type(rule: Rule) -> None:
    types = {"array": list, "string": str, "number": int}
    schema = rule.schema()
    assert schema is not None
    for option in schema.properties.values():
        assert isinstance(option["default"], types[option["type"]])
        assert option["description"].endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_page_has_every_rule_with_its_level_and_options(rule: Rule) -> None:
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{rule.name}` |")]
    assert rule.level.value in row
    for option in rule.options:
        assert f"`{option}`" in row


def test_rules_have_different_names() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_an_option_that_a_rule_does_not_have_is_named_with_the_nearest_one() -> None:
    rule = RULES[0]
    assert rule.misnamed({"allowed": []}) == []
    (message,) = rule.misnamed({"alowed": ["x"]})
    assert message.startswith(f'{rule.name}.alowed: ["x"]')
    assert message.endswith("Did you mean allowed?")
    (message,) = rule.misnamed({"zzz": 1})
    assert message.endswith("The options are: allowed.")


def test_the_engines_properties_become_plain_data_with_what_is_unknown_marked() -> None:
    props = {
        "name": "x",
        "email": UNKNOWN_STRING_VALUE,
        "networks": [{"ip": UNKNOWN_STRING_VALUE, "__defaults": []}, UNKNOWN_STRING_VALUE],
    }
    copy = plain(unknown_checking_proxy(props))
    assert copy == {"name": "x", "email": UNKNOWN, "networks": [{"ip": UNKNOWN}, UNKNOWN]}


def test_a_resource_is_named_by_its_name_in_the_program_and_in_the_cloud() -> None:
    resource = Resource("a:b/c:Disk", "disk", "urn:pulumi:dev::p::a:b/c:Disk::disk", {"name": "d1"})
    assert resource.stack == "dev"
    assert resource.title == "Disk d1"
    assert resource.matches(["d?"])
    assert resource.matches(["disk"])
    assert not resource.matches(["D1", "dis"])


def test_the_rules_are_those_next_to_the_pack_whatever_else_has_their_name(tmp_path: Path) -> None:
    (tmp_path / "tpu_policy").mkdir()
    (tmp_path / "tpu_policy" / "__init__.py").touch()
    found = PathFinder.find_spec("tpu_policy", [str(ROOT / "policy"), str(tmp_path)])
    assert found is not None
    assert found.origin == str(ROOT / "policy" / "tpu_policy" / "__init__.py")


def test_the_pack_runs_with_the_python_of_the_project() -> None:
    def virtualenv(path: str) -> Path:
        project = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
        folder: str = project["runtime"]["options"]["virtualenv"]
        return ((ROOT / path).parent / folder).resolve()

    assert virtualenv("policy/PulumiPolicy.yaml") == virtualenv("Pulumi.yaml")
