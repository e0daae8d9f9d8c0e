from __future__ import annotations

import pytest
import yaml

from bootstrap.settings import BootstrapError, parse
from tpustack import bootstrap
from tpustack.errors import UsageError
from tpustack.project import root

RIGHT: dict[str, object] = {
    "gcp:project": "some-project",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
}


def test_little_has_to_be_said() -> None:
    settings = parse(RIGHT, "pipeline")
    assert settings.bucket == "some-project-tpu-stack-ci-state"
    assert settings.all_projects == ("some-project",)
    assert settings.branch == "main"


def test_the_settings_file_of_this_repository_is_right() -> None:
    assert bootstrap.load("pipeline", root()).projects[-1] == "my-project-prod"
    document = yaml.safe_load((root() / "bootstrap/Pulumi.pipeline.yaml").read_text())
    assert set(document) == {"config"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("region", "Europe", 'region: "Europe" is no region'),
        ("repository", "mine", 'repository: "mine" is no repository'),
        ("projects", ["123"], 'projects[0]: "123" is no project id'),
        ("deployerRoles", ["owner"], 'deployerRoles[0]: "owner" is no role'),
        ("namePrefix", "x", 'namePrefix: "x" is no prefix'),
        ("stateBucket", "A", 'stateBucket: "A" is no bucket name'),
        ("forge", "bitbucket", "forge:"),
        ("nosuch", 1, "nosuch: 1 is wrong: Extra inputs"),
        ("budget", {"billingAccount": "0", "dollars": 1}, 'budget.billingAccount: "0" is no'),
        ("budget", {"billingAccount": "0", "dollars": 0}, "budget.dollars: 0 is wrong"),
    ],
)
def test_wrong_settings_are_named(name: str, value: object, said: str) -> None:
    with pytest.raises(BootstrapError) as error:
        parse({**RIGHT, f"tpu-stack-bootstrap:{name}": value}, "pipeline")
    assert said in str(error.value)
    assert "Nothing was created or changed." in str(error.value)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(BootstrapError, match=r"3 problems in Pulumi\.pipeline\.yaml"):
        parse({}, "pipeline")


def test_a_stack_without_a_file_is_wrong_input() -> None:
    with pytest.raises(UsageError, match=r"no Pulumi\.nosuch\.yaml\. There are: pipeline"):
        bootstrap.load("nosuch", root())
